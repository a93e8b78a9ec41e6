/* Preloaded into a server: kills it (SIGKILL to itself) at a chosen rename or fsync of a chosen file.
 *
 * The file named by USAGE_KILL_FILE arms it with one line "STEP NTH NAME SERIAL": STEP is E on entering a rename, L on leaving it, S
 * on entering an fsync; the NTH such call whose path holds NAME is hit. The file is removed when the shot is fired. A
 * ClickHouse part becomes visible, with all it holds, by one rename of its directory. The server's own log tables are left
 * alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char armed[256];
static int seen;

static void fire(void) {
    unlink(getenv("USAGE_KILL_FILE"));
    kill(getpid(), SIGKILL);
}

/* True if this call is the one that is meant. */
static int is_meant(char step, const char *path) {
    const char *file = getenv("USAGE_KILL_FILE");
    char order[256] = "", name[128] = "", wanted = 0;
    int nth = 0;
    if (!file || strstr(path, "/system/")) return 0;
    FILE *handle = fopen(file, "r");
    if (!handle) return 0;
    if (!fgets(order, sizeof order, handle)) order[0] = 0;
    fclose(handle);
    if (sscanf(order, "%c %d %127s", &wanted, &nth, name) != 3) return 0;
    if (wanted != step || !strstr(path, name)) return 0;
    if (strcmp(order, armed)) {
        strcpy(armed, order);
        seen = 0;
    }
    return __sync_add_and_fetch(&seen, 1) == nth;
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    if (is_meant('E', from)) fire();
    int result = real(from, to);
    if (is_meant('L', from)) fire();
    return result;
}

static int sync_of(int descriptor, const char *function) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, function);
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (is_meant('S', path)) fire();
    }
    return real(descriptor);
}

int fsync(int descriptor) { return sync_of(descriptor, "fsync"); }

int fdatasync(int descriptor) { return sync_of(descriptor, "fdatasync"); }
