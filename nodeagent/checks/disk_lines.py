"""The kernel's lines about a disk, a filesystem or an array: the kind of trouble and its device.

Formats are those of Linux 3.10 to 7.0 (block/, drivers/nvme/host, drivers/md, fs/ext4, fs/jbd2,
fs/xfs, fs/btrfs). Every text that a user can choose (the name of a process) stands behind the words
that are compared here. Messages that say nothing about the disk (operation not supported,
reservation conflict, no resources, a shutdown that an operator asked for) are left out.
"""

import re
from dataclasses import field

from nodeagent.checks.loglines import first_bytes, text
from nodeagent.dataclass import dataclass

ERROR, MEDIUM, TIMEOUT, LOST = "error", "medium", "timeout", "lost"
LOST_INTERRUPT, PATH, NO_PATH = "lost-interrupt", "path", "no-path"
FILESYSTEM, ARRAY = "filesystem", "array"

_DEV = rb"([a-z][\w!-]{1,31})"
_NUMBERS = rb"(\d{1,4}:\d{1,7})"

_BLOCK = re.compile(
    rb"(?:(?:blk_update_request|blk_print_req_error|print_req_error|end_request): )?"
    rb"(I/O|critical medium|critical target|timeout|recoverable transport|protection"
    rb"|device offline) error, dev " + _DEV + rb", sector (\d{1,20})"
    rb"(?: op 0x[0-9a-f]{1,4}:\(([A-Z_ ]{1,24})\))?"
)
_BUFFER = re.compile(
    rb"Buffer I/O error on dev(?:ice)? " + _DEV + rb", logical block \d{1,20}(?:, ([\w ]{1,40}))?"
    rb"|lost page write due to I/O error on " + _DEV + rb"$"
)
# Linux before 4.5 names the controller by its PCI address.
_NVME = re.compile(
    rb"nvme (nvme\d{1,4}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): (?:"
    rb"(?:I/O (?:tag )?\d{1,6}.{0,60}\bQID \d{1,5} timeout(, completion polled)?"
    rb"|Cancelling I/O \d{1,6}\b)"
    rb"|(controller is down; will reset|Failed status: [0-9a-fx]{1,10}, reset controller"
    rb"|Device not ready; aborting|Device (?:failed to resume|shutdown incomplete)"
    rb"|Removing after probe failure|Disabling device after reset failure"
    rb"|Removing controller|failed to mark controller|IO queues (?:lost|not created)"
    rb"|Identify Controller failed|Reading (?:CAP|VS|CRTO) failed"
    rb"|resetting controller due to persistent internal error"
    rb"|frozen state error detected|failure state error detected"
    rb"|can't change power state from D3\w{3,4} to D0 \(config space inaccessible\)"
    rb"|Unable to change power state from D3\w{3,4} to D0, device inaccessible))"
)
# Linux 5.16 and later, before the block layer's line. Types and codes are NVMe's: 2 is the media
# (without "compare failure" and "access denied"), of 0 those of the drive itself.
_NVME_COMMAND = re.compile(
    rb"(nvme\d{1,4}(?:c\d{1,4})?n\d{1,6}): .{1,40}\(0x[0-9a-f]{1,2}\) @ LBA (\d{1,20}), "
    rb"\d{1,10} blocks, .{1,60} \(sct 0x(?:(2) / sc 0x8[0-47]|0 / sc 0x(?:4|5|6|82))\)"
)
_NVME_PATH = re.compile(
    rb"block " + _DEV + rb": no (?:available path - failing|usable path - requeuing) I/O"
)
# The first of the two is the map, the second the path; Linux before 5.1 names the path alone.
_MULTIPATH = re.compile(
    rb"device-mapper: multipath: (?:(?:" + _NUMBERS + rb": )?Failing path " + _NUMBERS + rb"\."
    rb"|queue_if_no_path timeout on " + _NUMBERS + rb", failing queued IO)"
    rb"|multipath: IO failure on " + _DEV + rb", disabling IO path"
)
_XFS = re.compile(
    # A process that calls an old ioctl is named before the kernel's words.
    rb"XFS \((?![^)]{1,32}\): .{1,60} should use fallocate;)" + _DEV + rb"\): (?:"
    # What a debugging kernel does on purpose, and a feature that this kernel is too old for.
    # Nor what the kernel writes after the name of a process, which may be "XFS (ab): ".
    rb"(?!Intentionally corrupted |Superblock has unknown |First \d"
    rb"|.{0,6}\[\d{1,10}\]|.{0,8}Corrupted page table at address )(?:"
    rb".{0,160}\bxfs_repair\b|.{0,100}(?i:\bcorrupt(?:ed|ion)?\b)"
    rb"|.{0,44}\b[Bb]ad (?:\w{1,12} )?inode |.{0,44}Bad inode\b"
    rb"|SB (?:[a-z/ -]{1,40} )?(?:sanity check|validate|read) failed"
    rb"|Superblock has bad magic number"
    rb"|(?:filesystem|log) size mismatch detected|(?:last sector|log device) read failed"
    rb"|Log inconsistent |RT mount failed|failed to (?:read RT inodes|write sb changes)"
    rb"|Failed to remove inode\(s\) from unlinked list|Access to block zero in inode "
    rb"|write error -?\d{1,4} updating a secondary superblock|Allocated a known in-use inode "
    rb"|xlog_\w{1,40}: (?:bad|invalid|unexpected|unrecogni[sz]ed|failed to clear) )|"
    # Linux 5.14 and later: the reason of a shutdown, unless an operator asked for it.
    rb"(?!User )[A-Z][\w /-]{3,40} \(0x[0-9a-f]{1,8}\) detected at "
    rb"|Filesystem has been shut down|Please u(?:n)?mount the filesystem"
    rb"|xfs_do_force_shutdown|xfs_log_force: error "
    rb"|[Ll]og I/O [Ee]rror|.{0,24}I/O Error Detected|Block device removal"
    rb"|.{0,12}[Mm]etadata (?:I/O [Ee]rror|CRC error|corruption)|XFS: metadata IO error"
    rb"|(?:XFS: )?(?:Failing async write|Corruption )|Internal error |Unmount and run xfs_repair"
    rb"|Uncorrected metadata errors|log record CRC mismatch|Torn write \(CRC failure\)"
    rb"|.{0,40}writeback error on (?:inode|sector) |page discard (?:on|unable)"
    rb"|[Ll]og mount(?:/recovery failed| failed| finish failed)"
    rb"|log recovery (?:read |write )?I/O error|failed to (?:find log head|locate log tail)"
    rb"|[Ff]ailed to (?:read root inode|recover )|SB (?:validate|read) failed"
    rb"|.{1,60} - can't recover|(?:Invalid superblock|bad) magic number"
    rb"|ondisk log corrupt|empty log check failed|xlog_recover_\w{1,40}: bad "
    rb"|xfs_\w{1,40}: .{0,40}returned error -?\d)"
)
_BTRFS_REFUSALS = (
    rb"unrecognized (?:mount option|(?:\w{1,20}|discard mode) value) |invalid value "
    rb"|support for ACL |'.{1,255}' is not a valid|subvol '"
    rb"|balance: |relocate: |reloc already|deleting default |device (?:add|remove|replace) "
    rb"|dev-replace: |target device |send_in_progress |unable to set label |scrub is "
    rb"|scrub on devid .{1,300} not writable|cannot (?:disable|mount|replay) "
    rb"|\S{1,40} must be used with ro |.{0,40}extent tree v2|btrfs RAID5/6 is EXPERIMENTAL"
    rb"|zoned: (?:mode not|space cache|mixed block|NODATACOW)|old qgroup version|qgroup "
    rb"|failed to (?:open device for|lookup block device for) path |replace without active item"
    rb"|sectorsize \d{1,10} not yet|unsupported checksum algorithm|remount"
)
_BTRFS_WARNINGS = (
    rb"csum failed|(?:csum|checksum|i/o|header) error at logical |checksum (?:error|verify failed)"
    rb"|direct IO failed |lost (?:page|super block) write|forced readonly"
    rb"|super block (?:checksum )?error on |tree block \d{1,20} mirror \d{1,3} has bad "
    rb"|(?:couldn't|failed to) read[ -](?:fs )?(?:tree(?: root| block)?|log tree|root \()"
    rb"|chunk \d{1,20} missing \d{1,4} devices|error -\d{1,4} while searching for "
    rb"|devid \d{1,20} uuid [0-9a-f-]{36} is missing"
)
_BTRFS = re.compile(
    # A person's command or mount option that btrfs refuses, a feature that it lacks, and a write
    # for which there is no space (-28), are no trouble of the disk.
    rb"(?!BTRFS (?:error|alert) \([^)]{1,60}\): (?:" + _BTRFS_REFUSALS + rb"|.{1,256}: -28$))"
    # The letters of the state (fs/btrfs/super.c): E is an error, A an aborted transaction.
    rb"BTRFS:? (?:(?:error|critical|alert|emergency|panic)"
    rb"|warning(?= \(device [\w-]{1,32}:? state [A-Z]{0,11}[EA])"
    rb"|(?:warning|info)(?= \([^)]{1,60}\): (?:" + _BTRFS_WARNINGS + rb")))"
    rb" \(device " + _DEV + rb"(?::? state \w{1,12})?\)"
    rb"|(?:BTRFS|btrfs): bdev /dev/" + _DEV + rb" errs: "
    rb"|(?:BTRFS|btrfs): lost page write due to I/?O error on /dev/" + _DEV + rb"\b"
    rb"|(?:BTRFS|btrfs): (?:unable to fixup \(\w{1,12}\)|fixed up|checksum|i/o) error at logical "
    rb"\d{1,20} on dev /dev/" + _DEV + rb"\b"
)
_EXT = re.compile(
    rb"EXT[234]-fs error \(device " + _DEV + rb"\)"
    rb"|EXT[234]-fs \(" + _DEV + rb"\): (?:(?:error: )?Remounting filesystem read-only"
    rb"|I/O error while writing superblock|previous I/O error to superblock"
    rb"|.{1,80} -- potential data loss!|[Dd]elayed block allocation failed"
    rb"|This should not happen!! +Data will be lost|error count since last fsck: "
    rb"|(?:initial|last) error at time \d|\w{1,40}: jbd2_start: .{1,60} err -\d"
    rb"|warning: mounting fs with errors|Errors on filesystem, clearing orphan list"
    rb"|ext[34]_check_descriptors: |group descriptors corrupted|can't read (?:group )?descriptor \d"
    rb"|get (?:orphan inode|root inode|root dentry) failed|corrupt root inode"
    rb"|VFS: Found ext4 filesystem with invalid superblock checksum"
    rb"|[Uu]nable to read superblock|Can't read superblock on 2nd try|Magic mismatch, very weird"
    rb"|error loading journal|no journal found|(?:journal inode is deleted|invalid journal inode)"
    rb"|Could not load journal inode|journal bmap failed|can't get journal size"
    rb"|couldn't read superblock of external journal|external journal has (?:bad|corrupt) "
    rb"|bad geometry: (?:block count|first data block) \d|Failed to update primary superblock"
    rb"|failed to initialize (?:system zone|mballoc) \(-(?:5|74|117)\))"
    rb"|EXT[234]-fs warning \(device " + _DEV + rb"\): (?:ext[34]_end_bio:\d{1,5}: I/O error"
    rb"|ext[34]_clear_journal_err:\d{1,5}: Filesystem error recorded"
    rb"|htree_dirblock_to_tree:\d{1,5}: inode #\d{1,20}: lblock \d{1,20}: comm .{1,64}: error -\d"
    rb"|dx_probe:\d{1,5}: (?:inode #\d{1,20}: comm .{1,64}: )?(?:Corrupt dir(?:ectory| inode \d)"
    rb"|dx entry: (?:limit|count) \d)"
    rb"|\w{1,40}:\d{1,5}: Error -?\d{1,4} (?:while )?reading MMP block"
    rb"|\w{1,40}:\d{1,5}: (?:Cannot read inode bitmap - |Marked fs in need of filesystem check))"
)
# The name of a journal is its device's with the inode's number, or an external journal's device.
_JOURNAL = re.compile(
    rb"(?:Aborting journal on device |JBD2?: Detected IO errors while flushing file data on "
    rb"|JBD2?: (?:I/O error|Error -?\d{1,5})(?: detected)? when updating journal superblock for "
    rb"|JBD2: previous I/O error detected for journal superblock update for "
    rb"|JBD2: journal transaction \d{1,10} on "
    rb"|\w{1,32}: journal block not found at offset \d{1,20} on )"
    rb"(dm-\d{1,5}|[a-z][\w!]{1,31})(?:-\d{1,10})?(?=[. ]|$)"
)
# md/raid0 and md/linear forget the colon before the array's name.
_ARRAY = re.compile(
    rb"md/(?:raid\d{0,2}|linear|multipath):?(md[\w-]{1,24}): "
    rb"(?:Disk failure on " + _DEV + rb"(?:, disabling| detected, failing)"
    rb"|(?:" + _DEV + rb": )?unrecoverable I/O (?:read )?error"
    rb"|read error (?:NOT corrected|not correctable|on replacement device)"
    rb"|Too many read errors, failing device"
    rb"|" + _DEV + rb": (?:Raid device exceeded read_error threshold|Failing raid device)"
    rb"|Cannot continue operation|not enough (?:operational|configured) (?:devices|mirrors)"
    rb"|(?:too few disks|not enough drives present)|journal disk is missing|failed to run raid set"
    rb"|recovery aborted due to read error|read correction write failed"
    rb"|(?:cannot start|starting) dirty degraded array)"
)

# Printed when an array starts (raid1, raid10, raid456); it lacks members where the first is less.
_ACTIVE = re.compile(
    rb"md/raid\d{0,2}:(md[\w-]{1,24}): (?:raid level \d{1,2} )?"
    rb"active with (\d{1,4}) out of (\d{1,4}) (?:mirrors|devices)\b"
)

#: The first four bytes of every line above, for the lookup that each record costs.
FIRST = first_bytes(
    (
        *(b"I/O error, dev ", b"critical ", b"timeout error", b"recoverable ", b"protection "),
        *(b"device offline", b"blk_", b"print_req", b"end_request", b"Buffer I/O ", b"nvme "),
        *(b"EXT2", b"EXT3", b"EXT4", b"XFS (", b"BTRFS", b"btrfs: ", b"Aborting journal"),
        *(b"JBD:", b"JBD2", b"jbd2_", b"journal_bmap", b"md/r", b"md/l", b"md/m", b"lost page "),
        *(
            *(b"nvme%d" % digit for digit in range(10)),
            b"block nvme",
            b"device-mapper: multipath: ",
            b"multipath: IO",
        ),
    )
)

#: Operations that a device may refuse without harm to data; the kernel then does without them.
_HINTS = (b"DISCARD", b"WRITE_ZEROES", b"WRITE_SAME")
_KINDS = {b"critical medium": MEDIUM, b"device offline": LOST, b"timeout": TIMEOUT}


@dataclass(frozen=True, slots=True)
class DiskLine:
    """The trouble that one line tells of.

    ``device`` is a name ("sda1"), major and minor ("253:0"), or with ``controller`` an NVMe
    controller by name or PCI address. ``sector`` is None where the line names none.
    """

    kind: str
    device: str
    sector: int | None = None
    controller: bool = False
    details: dict[str, str] = field(default_factory=dict)


def parse(line: bytes) -> DiskLine | None:
    """The trouble in a line, or None. Lines whose first four bytes are not in `FIRST` have none."""
    block = _BLOCK.match(line)
    if block is not None:
        if block[1] == b"critical target" and (block[4] or b"").startswith(_HINTS):
            return None
        details = {"sector": text(block[3]), "operation": text(block[4] or b"").lower()}
        kind = _KINDS.get(block[1], ERROR)
        return DiskLine(kind, text(block[2]), int(block[3]), details=details)
    buffer = _BUFFER.match(line)
    if buffer is not None:
        device = text(buffer[1] or buffer[3])
        return DiskLine(ERROR, device, details={"operation": text(buffer[2] or b"")})
    nvme = _NVME.match(line)
    if nvme is not None:
        kind = LOST if nvme[3] else LOST_INTERRUPT if nvme[2] else TIMEOUT
        name = text(nvme[1])
        return DiskLine(kind, name, controller=True, details={"controller": name})
    command = _NVME_COMMAND.match(line)
    if command is not None:
        # A path of a drive ("nvme0c1n1") has no block device: its name is without the path's.
        device = re.sub(r"c\d+n", "n", text(command[1]))
        details = {"logical_block": text(command[2])}
        return DiskLine(MEDIUM if command[3] else ERROR, device, details=details)
    return _filesystem(line) or _paths(line) or _array(line)


def _filesystem(line: bytes) -> DiskLine | None:
    for pattern in (_EXT, _XFS, _BTRFS, _JOURNAL):
        found = pattern.match(line)
        if found is not None:
            return DiskLine(FILESYSTEM, text(next(group for group in found.groups() if group)))
    return None


def _paths(line: bytes) -> DiskLine | None:
    nvme = _NVME_PATH.match(line)
    if nvme is not None:
        return DiskLine(NO_PATH, text(nvme[1]))
    found = _MULTIPATH.match(line)
    if found is None:
        return None
    if found[3]:
        return DiskLine(NO_PATH, text(found[3]))
    path = text(found[2] or found[4])
    return DiskLine(PATH, text(found[1]) if found[1] else path, details={"path": path})


def _array(line: bytes) -> DiskLine | None:
    active = _ACTIVE.match(line)
    if active is not None:
        members = {"active": text(active[2]), "members": text(active[3])}
        lacks = int(active[2]) < int(active[3])
        return DiskLine(ARRAY, text(active[1]), details=members) if lacks else None
    found = _ARRAY.match(line)
    if found is None:
        return None
    return DiskLine(
        ARRAY, text(found[1]), details={"member": text(found[2] or found[3] or found[4] or b"")}
    )
