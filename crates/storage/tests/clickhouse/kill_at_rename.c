/* Preloaded into the server: kills it on entering or leaving the N-th rename of an inserted part of a monthly table.
 * The file named by USAGE_KILL_FILE arms it: "E 2" = on entering the second, "L 1" = on leaving the first; it is removed
 * when the shot is fired. A part becomes visible, with all it holds, by this one rename. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int seen;
static char armed[16];

static void fire(const char *file) {
    unlink(file);
    kill(getpid(), SIGKILL);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    const char *file = getenv("USAGE_KILL_FILE");
    char order[16] = "";
    FILE *handle = file && strstr(from, "/tmp_insert_20") ? fopen(file, "r") : NULL;
    if (handle) {
        if (!fgets(order, sizeof order, handle)) order[0] = 0;
        fclose(handle);
    }
    if (!order[0]) return real(from, to);
    if (strcmp(order, armed)) {
        strcpy(armed, order);
        seen = 0;
    }
    int now = __sync_add_and_fetch(&seen, 1);
    if (order[0] == 'E' && now == atoi(order + 2)) fire(file);
    int result = real(from, to);
    if (order[0] == 'L' && now == atoi(order + 2)) fire(file);
    return result;
}
