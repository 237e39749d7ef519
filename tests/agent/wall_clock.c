/* Sets a process's wall clock wrong, and no other: LD_PRELOAD, with WALL_CLOCK_AHEAD in seconds.
   Clocks that nobody sets (monotonic, since boot) are the machine's own. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
  const char *said = getenv("WALL_CLOCK_AHEAD");
  return said ? atol(said) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int failed = (int)syscall(SYS_gettimeofday, now, zone);
  if (!failed) now->tv_sec += ahead();
  return failed;
}

time_t time(time_t *where) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
