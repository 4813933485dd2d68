#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    char text[32] = {0};
    const char *path = getenv("TIDEGATE_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec + atol(text);
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
