/* libnvidia-ml.so.1 of a machine with one GPU whose answers stand in the file $NVML_ANSWERS, "name value" a line, read anew at
   every call. Structures and units as NVML's reference documents them; a name that is not there answers "not supported". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;

static int answer(const char *wanted, double *value) {
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

static int number(const char *wanted, unsigned *value) {
    double read;
    int code = answer(wanted, &read);
    if (code == OK) *value = (unsigned)read;
    return code;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(uintptr_t)(index + 1); return OK; }
int nvmlDeviceGetName(void *device, char *name, unsigned size) { (void)device; snprintf(name, size, "Test GPU"); return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "600.00"); return OK; }

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long info[3]) {
    (void)device;
    double used;
    int code = answer("used_bytes", &used);
    info[0] = 1ull << 34, info[2] = (unsigned long long)used, info[1] = info[0] - info[2];
    return code;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    (void)device;
    rates[1] = 0;
    return number("utilization_percent", &rates[0]);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    (void)device, (void)sensor;
    return number("celsius", celsius);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { (void)device; return number("milliwatts", milliwatts); }

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
    (void)device;
    return number(kind == 1 ? "sm_megahertz" : "memory_megahertz", megahertz);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *mask) {
    (void)device;
    double read;
    int code = answer("clock_limits", &read);
    if (code == OK) *mask = (unsigned long long)read;
    return code;
}

/* Rises by `milliwatts` every second, in steps of `counter_seconds`, as the devices' own counters do. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    (void)device;
    double watts, period;
    struct timespec now;
    if (answer("milliwatts", &watts) || answer("counter_seconds", &period)) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    double steps = (double)(long long)((now.tv_sec % 1000000 + now.tv_nsec / 1e9) / period);
    *millijoules = (unsigned long long)(steps * period * watts);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *processes) {
    (void)device;
    double pid, bytes = -1;
    if (answer("pid", &pid)) { *count = 0; return OK; }
    if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    processes[0].pid = (unsigned)pid, processes[0].gpu_instance = processes[0].compute_instance = ~0u;
    processes[0].used = answer("process_bytes", &bytes) ? ~0ull : (unsigned long long)bytes;
    return OK;
}
