/* A libnvidia-ml.so.1 for tests: NVML's C interface, driven by a text file.
 *
 * The file (path in SICKBAY_TEST_NVML_SCENARIO) is read again whenever it was replaced, at every
 * call, so that a running agent sees a fault appear. tests/nvml/__init__.py writes it:
 *
 *   driver 580.65.06
 *   gpu UUID PCI ECC*4 ROWS*4 ACTION NAME...     one line per GPU, in the order of their indices
 *   value GPU NAME NUMBER SCOPE SCOPE...         what else that GPU says: NAME is "field:94" for a
 *                                                field, or a call's own word; no line, no support.
 *                                                With several scopes (links, say), for each of them
 *   event SERIAL GPU XID                         an Xid event; those from before it was listened
 *                                                to are not given, as in NVML
 *   rule CALL GPU error CODE                     CALL returns CODE ("field:230": one field's)
 *   rule CALL GPU hang                           until the rule is gone
 *   rule CALL GPU abort
 *   rule CALL GPU open PATH                      waits in the kernel, in an open for writing
 *
 * A negative count is "not supported". GPU is an index, or -1 for any. With SICKBAY_TEST_NVML_CALLS
 * set, each call is added to that file as "PID CALL GPU".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
  ARGUMENT_VERSION_MISMATCH = 25,
  MAX_GPUS = 64, MAX_RULES = 64, MAX_VALUES = 4096, MAX_EVENTS = 512, TIMEOUT = 10,
  XID_EVENT = 8, VALUE_UNSIGNED_LONG_LONG = 3,
};

typedef void *device_t;

typedef struct {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} pci_info_t;

typedef struct {
  unsigned field_id, scope_id;
  long long timestamp, latency_usec;
  unsigned value_type;
  int nvml_return;
  union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; } value;
} field_value_t;

struct gpu {
  char uuid[96], pci[32], name[96];
  long long ecc[4]; /* volatile corrected, volatile uncorrected, aggregate the same */
  long long rows[4]; /* corrected, uncorrected, pending, failure */
  long long action;
};

struct rule {
  char call[64], what[16], arg[256];
  int gpu;
};

struct value {
  char name[20];
  int gpu;
  long long scope; /* a link, an element of an array, the time stamp of a page */
  unsigned long long number;
};

struct event {
  long serial;
  int gpu;
  unsigned long long xid;
};

static struct {
  char driver[80];
  struct gpu gpus[MAX_GPUS];
  struct rule rules[MAX_RULES];
  struct value values[MAX_VALUES];
  struct event events[MAX_EVENTS];
  int event_count;
  int gpu_count, rule_count, value_count;
} scenario;

static int initialised;

static int read_values(const char *line) {
  struct value read;
  int at = 0, more = 0, any = 0;
  if (sscanf(line, "value %d %19s %llu%n", &read.gpu, read.name, &read.number, &at) != 3) return 0;
  for (; sscanf(line + at, "%lld%n", &read.scope, &more) == 1; at += more, any = 1) {
    if (scenario.value_count >= MAX_VALUES) return 0;
    scenario.values[scenario.value_count++] = read;
  }
  return any;
}

static void read_line(const char *line) {
  if (sscanf(line, "driver %79s", scenario.driver) == 1) return;
  if (!strncmp(line, "gpu ", 4) && scenario.gpu_count < MAX_GPUS) {
    struct gpu *g = &scenario.gpus[scenario.gpu_count++];
    int fields = sscanf(line, "gpu %95s %31s %lld %lld %lld %lld %lld %lld %lld %lld %lld %95[^\n]",
                        g->uuid, g->pci, &g->ecc[0], &g->ecc[1], &g->ecc[2], &g->ecc[3],
                        &g->rows[0], &g->rows[1], &g->rows[2], &g->rows[3], &g->action, g->name);
    if (fields == 12) return;
  } else if (!strncmp(line, "rule ", 5) && scenario.rule_count < MAX_RULES) {
    struct rule *r = &scenario.rules[scenario.rule_count++];
    if (sscanf(line, "rule %63s %d %15s %255[^\n]", r->call, &r->gpu, r->what, r->arg) >= 3) return;
  }
  if (!strncmp(line, "value ", 6) && read_values(line)) return;
  if (!strncmp(line, "event ", 6) && scenario.event_count < MAX_EVENTS) {
    struct event *e = &scenario.events[scenario.event_count++];
    if (sscanf(line, "event %ld %d %llu", &e->serial, &e->gpu, &e->xid) == 3) return;
  }
  fprintf(stderr, "nvml.c: cannot read this line of the scenario: %s", line);
  exit(70);
}

static void refresh(void) {
  static struct stat seen;
  struct stat now;
  const char *path = getenv("SICKBAY_TEST_NVML_SCENARIO");
  if (!path || stat(path, &now)) {
    fprintf(stderr, "nvml.c: SICKBAY_TEST_NVML_SCENARIO names no file\n");
    exit(70);
  }
  /* Two files of one inode number cannot be alive at once, and the writer renames: the time tells
   * apart those that follow one another. */
  if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
    return;
  FILE *file = fopen(path, "r");
  if (!file) return; /* replaced at this moment: the next call reads it */
  memset(&scenario, 0, sizeof scenario);
  char line[4096];
  while (fgets(line, sizeof line, file)) read_line(line);
  fclose(file);
  seen = now;
}

static const struct rule *rule_for(const char *call, int gpu) {
  refresh();
  for (int i = 0; i < scenario.rule_count; i++) {
    const struct rule *r = &scenario.rules[i];
    if (!strcmp(r->call, call) && (r->gpu < 0 || r->gpu == gpu)) return r;
  }
  return NULL;
}

static void record(const char *call, int gpu) {
  const char *path = getenv("SICKBAY_TEST_NVML_CALLS");
  if (!path) return;
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return;
  dprintf(fd, "%d %s %d\n", (int)getpid(), call, gpu);
  close(fd);
}

/* The word after a call that does not return: `FakeGpus.has_hung`. */
#define HANGS "hangs"

/* Wait in the kernel, and never run, until the scenario has no such rule any more; its writer
 * renames. A wait that polls would be found running on a busy machine, at no place in the kernel. */
static const struct rule *hang(const char *call, int gpu) {
  char folder[4096], events[4096];
  snprintf(folder, sizeof folder, "%s", getenv("SICKBAY_TEST_NVML_SCENARIO"));
  int changes = inotify_init1(IN_CLOEXEC);
  if (changes < 0 || inotify_add_watch(changes, dirname(folder), IN_MOVED_TO) < 0) {
    perror("nvml.c: inotify");
    exit(70);
  }
  record(HANGS, gpu);
  const struct rule *r;
  while ((r = rule_for(call, gpu)) && !strcmp(r->what, "hang"))
    if (read(changes, events, sizeof events) < 0) break;
  close(changes);
  return r;
}

/* What every call does first: the return code that the scenario asks for. */
static int enter(const char *call, int gpu) {
  record(call, gpu);
  const struct rule *r = rule_for(call, gpu);
  if (r && !strcmp(r->what, "abort")) abort();
  if (r && !strcmp(r->what, "open")) {
    record(HANGS, gpu);
    int fd = open(r->arg, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) close(fd);
    return SUCCESS;
  }
  if (r && !strcmp(r->what, "hang")) r = hang(call, gpu);
  return r && !strcmp(r->what, "error") ? atoi(r->arg) : SUCCESS;
}

static int index_of(device_t device) { return (int)(long)device - 1; }

/* The same for a call about one GPU. */
static int enter_gpu(const char *call, device_t device, struct gpu **gpu) {
  if (!initialised) return UNINITIALIZED;
  int code = enter(call, index_of(device));
  if (code) return code;
  if (index_of(device) < 0 || index_of(device) >= scenario.gpu_count) return INVALID_ARGUMENT;
  *gpu = &scenario.gpus[index_of(device)];
  return SUCCESS;
}

static int give(const char *text, char *out, unsigned length) {
  if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

/* What this GPU says under a name and scope; SUCCESS or NOT_SUPPORTED. */
static int look_up(const char *name, int gpu, long long scope, unsigned long long *number) {
  for (int i = 0; i < scenario.value_count; i++) {
    const struct value *v = &scenario.values[i];
    if (v->gpu == gpu && v->scope == scope && !strcmp(v->name, name)) {
      *number = v->number;
      return SUCCESS;
    }
  }
  return NOT_SUPPORTED;
}

int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int code = enter("nvmlInitWithFlags", -1);
  if (!code) initialised = 1;
  return code;
}

int nvmlShutdown(void) {
  initialised = 0;
  return enter("nvmlShutdown", -1);
}

const char *nvmlErrorString(int code) {
  static char text[64];
  snprintf(text, sizeof text, "error %d of the test library", code);
  return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) {
  int code = enter("nvmlSystemGetDriverVersion", -1);
  return code ? code : give(scenario.driver, out, length);
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  if (!initialised) return UNINITIALIZED;
  int code = enter("nvmlDeviceGetCount_v2", -1);
  unsigned long long claimed; /* "value -1 count N 0": what it says instead */
  *count = look_up("count", -1, 0, &claimed) ? (unsigned)scenario.gpu_count : (unsigned)claimed;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
  struct gpu *gpu;
  *device = (device_t)(long)(index + 1);
  return enter_gpu("nvmlDeviceGetHandleByIndex_v2", *device, &gpu);
}

int nvmlDeviceGetUUID(device_t device, char *out, unsigned length) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetUUID", device, &gpu);
  return code ? code : give(gpu->uuid, out, length);
}

int nvmlDeviceGetName(device_t device, char *out, unsigned length) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetName", device, &gpu);
  return code ? code : give(gpu->name, out, length);
}

int nvmlDeviceGetPciInfo_v3(device_t device, pci_info_t *out) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetPciInfo_v3", device, &gpu);
  if (code) return code;
  memset(out, 0, sizeof *out);
  if (sscanf(gpu->pci, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
    return INVALID_ARGUMENT;
  snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
  snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%04X:%02X:%02X.0", out->domain & 0xffff,
           out->bus & 0xff, out->device & 0xff);
  return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device_t device, unsigned type, unsigned counter,
                                unsigned long long *count) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetTotalEccErrors", device, &gpu);
  if (code) return code;
  if (type > 1 || counter > 1) return INVALID_ARGUMENT;
  long long value = gpu->ecc[counter * 2 + type];
  if (value < 0) return NOT_SUPPORTED;
  *count = value;
  return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device_t device, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failure) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetRemappedRows", device, &gpu);
  if (code) return code;
  if (gpu->rows[0] < 0) return NOT_SUPPORTED;
  *corrected = gpu->rows[0];
  *uncorrected = gpu->rows[1];
  *pending = gpu->rows[2];
  *failure = gpu->rows[3];
  return SUCCESS;
}

static void fill(int index, field_value_t *field) {
  char name[32];
  snprintf(name, sizeof name, "field:%u", field->field_id);
  const struct rule *r = rule_for(name, index);
  field->value_type = VALUE_UNSIGNED_LONG_LONG;
  field->nvml_return = r ? atoi(r->arg) : look_up(name, index, field->scope_id, &field->value.ull);
}

int nvmlDeviceGetFieldValues(device_t device, int count, field_value_t *fields) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetFieldValues", device, &gpu);
  for (int i = 0; !code && i < count; i++) fill(index_of(device), &fields[i]);
  return code;
}

/* A call that gives one number. */
static int number(const char *call, const char *name, device_t device, long long scope,
                  unsigned long long *out) {
  struct gpu *gpu;
  int code = enter_gpu(call, device, &gpu);
  return code ? code : look_up(name, index_of(device), scope, out);
}

/* One call by its older and its newer name. */
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, unsigned long long *reasons) {
  return number("nvmlDeviceGetCurrentClocksThrottleReasons", "clocks", device, 0, reasons);
}

int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *reasons) {
  return number("nvmlDeviceGetCurrentClocksEventReasons", "clocks", device, 0, reasons);
}

static int narrow_number(const char *call, const char *name, device_t device, long long scope,
                         unsigned *out) {
  unsigned long long wide = 0;
  int code = number(call, name, device, scope, &wide);
  *out = wide;
  return code;
}

int nvmlDeviceGetClockInfo(device_t device, unsigned type, unsigned *mhz) {
  return narrow_number("nvmlDeviceGetClockInfo", "clock", device, type, mhz);
}

int nvmlDeviceGetUtilizationRates(device_t device, unsigned out[2]) {
  out[1] = 0;
  return narrow_number("nvmlDeviceGetUtilizationRates", "load", device, 0, &out[0]);
}

int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *out) {
  return narrow_number("nvmlDeviceGetTemperature", "temperature", device, sensor, out);
}

int nvmlDeviceGetTemperatureThreshold(device_t device, unsigned threshold, unsigned *out) {
  return narrow_number("nvmlDeviceGetTemperatureThreshold", "threshold", device, threshold, out);
}

typedef struct { unsigned version; int margin; } margin_t;

int nvmlDeviceGetMarginTemperature(device_t device, margin_t *out) {
  return narrow_number("nvmlDeviceGetMarginTemperature", "margin", device, 0,
                       (unsigned *)&out->margin);
}

int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *out) {
  return narrow_number("nvmlDeviceGetEnforcedPowerLimit", "power-limit", device, 0, out);
}

typedef struct {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
} process_t;

/* "value GPU pid 1 PID PID...": the processes of a GPU. As NVML does, a buffer that is too short
 * gets the number that is needed. */
static int processes(const char *call, const char *name, device_t device, unsigned *count,
                     process_t *out) {
  struct gpu *gpu;
  int code = enter_gpu(call, device, &gpu);
  if (code) return code;
  unsigned room = *count;
  *count = 0;
  for (int i = 0; i < scenario.value_count; i++) {
    const struct value *v = &scenario.values[i];
    if (v->gpu != index_of(device) || strcmp(v->name, name)) continue;
    if (*count < room) out[*count] = (process_t){.pid = (unsigned)v->scope};
    ++*count;
  }
  return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count, process_t *out) {
  return processes("nvmlDeviceGetComputeRunningProcesses_v3", "pid", device, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t device, unsigned *count, process_t *out) {
  return processes("nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics", device, count, out);
}

int nvmlDeviceGetPersistenceMode(device_t device, unsigned *out) {
  return narrow_number("nvmlDeviceGetPersistenceMode", "persistence", device, 0, out);
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
  int code = narrow_number("nvmlDeviceGetMigMode", "mig", device, 0, current);
  return code ? code : narrow_number("nvmlDeviceGetMigMode", "mig", device, 1, pending);
}

int nvmlDeviceGetEccMode(device_t device, unsigned *current, unsigned *pending) {
  int code = narrow_number("nvmlDeviceGetEccMode", "ecc-mode", device, 0, current);
  return code ? code : narrow_number("nvmlDeviceGetEccMode", "ecc-mode", device, 1, pending);
}

int nvmlDeviceGetComputeMode(device_t device, unsigned *mode) {
  return narrow_number("nvmlDeviceGetComputeMode", "compute-mode", device, 0, mode);
}

int nvmlDeviceGetVirtualizationMode(device_t device, unsigned *mode) {
  return narrow_number("nvmlDeviceGetVirtualizationMode", "virtualization", device, 0, mode);
}

int nvmlDeviceGetVbiosVersion(device_t device, char *out, unsigned length) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceGetVbiosVersion", device, &gpu);
  return code ? code : give("96.00.99.00.01", out, length);
}

typedef struct {
  unsigned code, state;
  char information[128], product[128];
  unsigned enabled;
  struct { unsigned year; unsigned short month, day, hour, minute, second; unsigned char status; } expiry;
} licence_t;

typedef struct { int supported; unsigned count; licence_t features[3]; } licences_t;

/* "licence": its state is that of the one feature, a vGPU's. */
int nvmlDeviceGetGridLicensableFeatures_v4(device_t device, licences_t *out) {
  unsigned long long state;
  int code = number("nvmlDeviceGetGridLicensableFeatures_v4", "licence", device, 0, &state);
  if (code) return code;
  memset(out, 0, sizeof *out);
  out->supported = out->count = 1;
  out->features[0].code = 1;
  out->features[0].state = state;
  return SUCCESS;
}

typedef struct { unsigned environment, feature, tools; } cc_t;

/* "value -1 cc FEATURE 0" and "value -1 cc READY 1". */
int nvmlSystemGetConfComputeState(cc_t *out) {
  unsigned long long feature;
  int code = enter("nvmlSystemGetConfComputeState", -1);
  if (!code) code = look_up("cc", -1, 0, &feature);
  if (!code) *out = (cc_t){1, feature, 0};
  return code;
}

int nvmlSystemGetConfComputeGpusReadyState(unsigned *ready) {
  unsigned long long said = 0;
  int code = enter("nvmlSystemGetConfComputeGpusReadyState", -1);
  if (!code) code = look_up("cc", -1, 1, &said);
  *ready = said;
  return code;
}

/* "value -1 excluded BUS N": the N-th excluded GPU is on that bus. */
int nvmlGetExcludedDeviceCount(unsigned *count) {
  unsigned long long bus;
  for (*count = 0; !look_up("excluded", -1, *count, &bus); ++*count) continue;
  return enter("nvmlGetExcludedDeviceCount", -1);
}

/* "value -1 drained BUS": an administrator has drained the GPU on that bus. */
int nvmlDeviceQueryDrainState(pci_info_t *pci, unsigned *state) {
  unsigned long long drained = 0;
  look_up("drained", -1, pci->bus, &drained);
  *state = drained;
  return enter("nvmlDeviceQueryDrainState", -1);
}

typedef struct { pci_info_t pci; char uuid[80]; } excluded_t;

int nvmlGetExcludedDeviceInfoByIndex(unsigned index, excluded_t *out) {
  unsigned long long bus;
  int code = enter("nvmlGetExcludedDeviceInfoByIndex", -1);
  if (!code) code = look_up("excluded", -1, index, &bus);
  if (code) return code;
  memset(out, 0, sizeof *out);
  out->pci.bus = bus;
  return SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(device_t device, unsigned out[5]) {
  for (int i = 0; i < 5; i++) {
    unsigned long long banks;
    int code = number("nvmlDeviceGetRowRemapperHistogram", "reserve", device, i, &banks);
    if (code) return code;
    out[i] = banks;
  }
  return SUCCESS;
}

/* The pages' scopes are their time stamps, in microseconds since 1970. pynvml asks for their number
 * with four arguments only: with no room given, times is not to be touched. */
int nvmlDeviceGetRetiredPages_v2(device_t device, unsigned cause, unsigned *count,
                                 unsigned long long *addresses, unsigned long long *times) {
  struct gpu *gpu;
  const char *name = cause ? "pages:double" : "pages:single";
  unsigned long long any;
  unsigned found = 0, room = addresses ? *count : 0;
  int code = enter_gpu("nvmlDeviceGetRetiredPages_v2", device, &gpu);
  if (!code) code = look_up("pages", index_of(device), 0, &any);
  if (code) return code;
  for (int i = 0; i < scenario.value_count; i++) {
    const struct value *v = &scenario.values[i];
    if (v->gpu != index_of(device) || strcmp(v->name, name)) continue;
    if (found < room) {
      addresses[found] = v->number;
      times[found] = v->scope;
    }
    found++;
  }
  *count = found;
  return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(device_t device, unsigned *pending) {
  unsigned long long value;
  int code = number("nvmlDeviceGetRetiredPagesPendingStatus", "pages", device, 0, &value);
  if (!code) *pending = value;
  return code;
}

typedef struct {
  unsigned version;
  unsigned long long counts[11];
  unsigned threshold_exceeded;
} sram_t;

int nvmlDeviceGetSramEccErrorStatus(device_t device, sram_t *status) {
  unsigned long long value;
  int code = number("nvmlDeviceGetSramEccErrorStatus", "sram", device, 0, &value);
  if (!code) status->threshold_exceeded = value;
  return code;
}

int nvmlDeviceGetNvLinkState(device_t device, unsigned link, unsigned *active) {
  unsigned long long value;
  int code = number("nvmlDeviceGetNvLinkState", "link", device, link, &value);
  if (!code) *active = value;
  return code;
}

int nvmlDeviceGetNvLinkErrorCounter(device_t device, unsigned link, unsigned counter,
                                    unsigned long long *value) {
  char name[20];
  snprintf(name, sizeof name, "counter:%u", counter);
  return number("nvmlDeviceGetNvLinkErrorCounter", name, device, link, value);
}

typedef struct {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique, state, health;
  unsigned char summary; /* from version 3 on */
} fabric_t;

/* "fabric": 0 state, 1 status, 2 health, 3 summary, 4 clique, 5 the newest version it knows. */
int nvmlDeviceGetGpuFabricInfoV(device_t device, fabric_t *info) {
  unsigned long long said[6];
  for (int i = 0; i < 6; i++) {
    int code = number("nvmlDeviceGetGpuFabricInfoV", "fabric", device, i, &said[i]);
    if (code) return code;
  }
  if (info->version >> 24 > said[5]) return ARGUMENT_VERSION_MISMATCH;
  memset(info->cluster, 0xc1, sizeof info->cluster);
  info->state = said[0];
  info->status = said[1];
  info->health = said[2];
  info->clique = said[4];
  if (info->version >> 24 >= 3) info->summary = said[3];
  return SUCCESS;
}

int nvmlDeviceValidateInforom(device_t device) {
  struct gpu *gpu;
  return enter_gpu("nvmlDeviceValidateInforom", device, &gpu);
}

/* One set and one process at a time: what was given, and from where on each GPU is listened to. */
static long given, listened_from[MAX_GPUS];

static long newest_event(void) {
  long newest = 0;
  for (int i = 0; i < scenario.event_count; i++)
    if (scenario.events[i].serial > newest) newest = scenario.events[i].serial;
  return newest;
}

int nvmlEventSetCreate(void **set) {
  int code = enter("nvmlEventSetCreate", -1);
  *set = &given;
  return code;
}

int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void *set) {
  struct gpu *gpu;
  int code = enter_gpu("nvmlDeviceRegisterEvents", device, &gpu);
  if (code) return code;
  if (set != &given || types != XID_EVENT) return INVALID_ARGUMENT;
  listened_from[index_of(device)] = newest_event() + 1;
  return SUCCESS;
}

typedef struct {
  device_t device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} event_data_t;

int nvmlEventSetWait_v2(void *set, event_data_t *out, unsigned timeout_ms) {
  int code = enter("nvmlEventSetWait_v2", -1);
  if (code) return code;
  if (set != &given || timeout_ms) return INVALID_ARGUMENT;
  for (int i = 0; i < scenario.event_count; i++) {
    const struct event *e = &scenario.events[i];
    long from = listened_from[e->gpu];
    if (e->serial <= given || !from || e->serial < from) continue;
    given = e->serial;
    *out = (event_data_t){(device_t)(long)(e->gpu + 1), XID_EVENT, e->xid, 0xff, 0xff};
    return SUCCESS;
  }
  return TIMEOUT;
}
