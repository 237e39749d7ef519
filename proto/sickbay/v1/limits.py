"""The bounds of the contract: the most that one message, and one node's state, may hold.

The agent keeps to them and reports the entries that it had to leave out; the aggregator takes all
entries within them, and drops single entries beyond them. Both import this module, and
docs/contract.md has the same table. Lengths of texts are bytes of UTF-8: the aggregator counts
characters, which are never more. This module has no imports, because each import is memory on every
node.
"""

#: Entries, of one message and of the state of one node.
MAX_COMPONENTS = 2_000
MAX_FAULTS = 1_000
MAX_CLEARED = 256
MAX_LOST = 256
MAX_GONE = 1_000
#: Checks that one Hello names.
MAX_CHECKS = 500
MAX_TRAITS = 32
#: Measured series that one stream names.
MAX_SERIES = 256
#: Transitions of one component, occurrences of one fault, and both together in one message.
MAX_TRANSITIONS = 64
MAX_OCCURRENCES = 32
MAX_HISTORY = 16_000
#: Details of one fault.
MAX_DETAILS = 32
#: Names: of checks, codes, reasons, sources, details, and how something was cleared.
MAX_NAME = 128
#: A component's name: the longest is a path, which Linux bounds at as many bytes.
MAX_COMPONENT = 4_096
#: Texts for people, and the values of details.
MAX_TEXT = 1_000
#: Names and details, in bytes: of all components, of all faults, and of clearings, of losses and of
#: components that are gone. With the history they leave room for texts in one message.
MAX_COMPONENTS_BYTES = 1_572_864
MAX_FAULTS_BYTES = 1_048_576
MAX_SIGNS_BYTES = 131_072
#: One encoded message.
MAX_MESSAGE_BYTES = 4_194_304
#: The evidence of one repair, and what one test profile may report.
MAX_EVIDENCE_BYTES = 131_072
MAX_TEST_STEPS = 64
MAX_TEST_MEASUREMENTS = 1_024
#: GPUs that one order names, test profiles that one Hello names.
MAX_ORDER_GPUS = 64
MAX_TEST_PROFILES = 64
#: Users of GPUs that one GpuUse names.
MAX_GPU_USERS = 5
#: Seconds for which a Permission counts, from the sending of its PermissionRequest on.
PERMISSION_SECONDS = 10.0
#: Ten years: no machine is up for longer.
MAX_AGE_MS = 315_360_000_000
MAX_COUNT = 2**64 - 1
