/* libnvidia-ml.so.1 of a machine whose GPUs answer as the file $NVML_ANSWERS says, "name value" a line, read anew at every call.
   `cards` GPUs (1); "2.celsius" is that of the GPU with index 2 alone, before "celsius".
   Structures, units and errors as NVML's reference documents them; a name that is not there answers "not supported". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

/* A handle: the GPU's index and 1. */
static unsigned card_of(void *device) { return (unsigned)(uintptr_t)device - 1; }
static void *handle(unsigned card) { return (void *)(uintptr_t)(card + 1); }

static int read_answer(const char *wanted, double *value) {
    char name[64], path[4096];
    snprintf(path, sizeof path, "%s", getenv("NVML_ANSWERS"));
    FILE *file = fopen(path, "r");
    int found = NOT_SUPPORTED;
    double read;
    while (file && fscanf(file, "%63s %lf", name, &read) == 2)
        if (!strcmp(name, wanted)) { *value = read; found = OK; }
    if (file) fclose(file);
    return found;
}

static int answer(void *device, const char *wanted, double *value) {
    char own[64];
    snprintf(own, sizeof own, "%u.%s", card_of(device), wanted);
    return read_answer(own, value) && read_answer(wanted, value) ? NOT_SUPPORTED : OK;
}

static int number(void *device, const char *wanted, unsigned *value) {
    double read;
    int code = answer(device, wanted, &read);
    if (code == OK) *value = (unsigned)read;
    return code;
}

static unsigned cards(void) {
    double count = 1;
    read_answer("cards", &count);
    return (unsigned)count;
}

/* `init` is how a broken driver behaves: 1 hangs, 2 crashes, 3 ends the process. */
int nvmlInitWithFlags(unsigned flags) {
    double how = flags * 0;
    read_answer("init", &how);
    if (how == 1) sleep(600);
    if (how == 2) abort();
    if (how == 3) exit(0);
    return OK;
}

int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "600.00"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = cards(); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= cards()) return INVALID_ARGUMENT;
    *device = handle(index);
    return OK;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) {
    *index = card_of(device);
    return OK;
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) {
    (void)device;
    snprintf(name, size, "Test GPU");
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%08x-0000-0000-0000-000000000000", 0xa0 + card_of(device));
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *wanted, void **device) {
    char uuid[96];
    for (unsigned card = 0; card < cards(); card++) {
        nvmlDeviceGetUUID(handle(card), uuid, sizeof uuid);
        if (!strcmp(uuid, wanted)) { *device = handle(card); return OK; }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long info[3]) {
    double used;
    int code = answer(device, "used_bytes", &used);
    info[0] = 1ull << 34, info[2] = (unsigned long long)used, info[1] = info[0] - info[2];
    return code;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    rates[1] = 0;
    return number(device, "utilization_percent", &rates[0]);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)sensor;
    return number(device, "celsius", celsius);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return number(device, "milliwatts", milliwatts); }

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
    return number(device, kind == 1 ? "sm_megahertz" : "memory_megahertz", megahertz);
}

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts) {
    return number(device, "limit_milliwatts", milliwatts);
}

int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *megahertz) {
    return number(device, kind == 1 ? "max_sm_megahertz" : "max_memory_megahertz", megahertz);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) {
    unsigned read;
    int code = number(device, "clock_limits", &read);
    if (code == OK) *mask = read;
    return code;
}

/* Rises by `milliwatts` every second, in steps of `counter_seconds`, as the devices' own counters do. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    double watts, period;
    struct timespec now;
    if (answer(device, "milliwatts", &watts) || answer(device, "counter_seconds", &period)) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    double steps = (double)(long long)((now.tv_sec % 1000000 + now.tv_nsec / 1e9) / period);
    *millijoules = (unsigned long long)(steps * period * watts);
    return OK;
}

/* Processes `pid`, `child_pid` and `other_pid`, and what each holds. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *processes) {
    const char *names[] = {"pid", "child_pid", "other_pid"};
    const char *sizes[] = {"process_bytes", "child_bytes", "other_bytes"};
    double pid, bytes;
    unsigned found = 0, room = *count;
    for (int at = 0; at < 3; at++) {
        if (answer(device, names[at], &pid)) continue;
        if (found < room) {
            processes[found].pid = (unsigned)pid, processes[found].gpu_instance = processes[found].compute_instance = ~0u;
            processes[found].used = answer(device, sizes[at], &bytes) ? ~0ull : (unsigned long long)bytes;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
