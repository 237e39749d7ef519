"""The bounds of the contract: the most that one message, and one node's state, may hold.

The agent keeps to them and reports the entries that it had to leave out; the aggregator takes all
entries within them, and drops single entries beyond them. Both import this module, and
docs/reference/contract-bounds.md is made from the comments. Lengths of texts are bytes of UTF-8: the
aggregator counts characters, which are never more. This module has no imports, because each import
is memory on every node.
"""

#: Components of a message and of a node's state.
MAX_COMPONENTS = 2_000
#: Faults of a message and of a node's state.
MAX_FAULTS = 1_000
#: Cleared of a message, and those that wait for an Ack.
MAX_CLEARED = 256
#: EvidenceLost of a message.
MAX_LOST = 256
#: Components that are gone, of a message, and those that wait for an Ack.
MAX_GONE = 1_000
#: Checks that Hello names.
MAX_CHECKS = 500
#: Traits that Hello names.
MAX_TRAITS = 32
#: Measured series that one stream names.
MAX_SERIES = 256
#: Transitions of a component; of more the latest count.
MAX_TRANSITIONS = 64
#: Occurrences of a fault; of more the latest count.
MAX_OCCURRENCES = 32
#: Transitions and occurrences of one message; beyond them each entry keeps its latest.
MAX_HISTORY = 16_000
#: Details of a fault.
MAX_DETAILS = 32
#: A check, code, reason, source, `how`, boot id, the name of a detail.
MAX_NAME = 128
#: A component's name (the longest is a path, which Linux bounds at as many bytes).
MAX_COMPONENT = 4_096
#: A text for people, the value of a detail or trait.
MAX_TEXT = 1_000
#: Names and reasons of all components that an agent holds.
MAX_COMPONENTS_BYTES = 1_572_864
#: Names and details of all faults that an agent holds.
MAX_FAULTS_BYTES = 1_048_576
#: Names in all Cleared, and in all components gone, that wait for an Ack.
MAX_SIGNS_BYTES = 131_072
#: One encoded message; texts for people are cut until it fits.
MAX_MESSAGE_BYTES = 4_194_304
#: The evidence of one repair.
MAX_EVIDENCE_BYTES = 131_072
#: Steps of one test.
MAX_TEST_STEPS = 64
#: Measurements of one test.
MAX_TEST_MEASUREMENTS = 1_024
#: GPUs that one order names.
MAX_ORDER_GPUS = 64
#: Test profiles that Hello names.
MAX_TEST_PROFILES = 64
#: Users of GPUs that one GpuUse names.
MAX_GPU_USERS = 5
#: GPUs of pods that one GpuUse names; beyond them which pod uses which GPU is not known.
MAX_POD_GPUS = 512
#: The name of a pod or a claim, and that of a DRA device with its driver and pool.
MAX_POD_NAME = 512
#: Seconds for which a Permission counts, from the sending of its PermissionRequest on.
PERMISSION_SECONDS = 10.0
#: An age: ten years, as no machine is up for longer.
MAX_AGE_MS = 315_360_000_000
#: A number.
MAX_COUNT = 2**64 - 1
