/* A drive's answer to Get Log Page, by the kernel's own header: LD_PRELOADed into the probe. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/nvme_ioctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    struct nvme_admin_cmd *command = va_arg(arguments, struct nvme_admin_cmd *);
    va_end(arguments);
    if (request != NVME_IOCTL_ADMIN_CMD) return (int)syscall(SYS_ioctl, fd, request, command);
    const char *status = getenv("NVME_STATUS");
    if (command->opcode != 0x02 || command->nsid != 0xffffffff ||
        command->cdw10 != (127u << 16 | 2) || command->data_len != 512 || command->cdw11 != 0 ||
        command->timeout_ms == 0 || command->metadata_len != 0) {
        errno = EINVAL;
        return -1;
    }
    if (status != NULL) return atoi(status);
    uint8_t *page = (uint8_t *)(uintptr_t)command->addr;
    memset(page, 0, 512);
    page[0] = 0x04;
    page[1] = (273 + 41) & 0xff;
    page[2] = (273 + 41) >> 8;
    page[3] = 97;
    page[4] = 10;
    page[5] = 3;
    page[160] = 7;
    page[161] = 1;
    return 0;
}
