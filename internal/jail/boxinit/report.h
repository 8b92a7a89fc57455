// What boxinit tells its supervisor.
#ifndef REPORT_H
#define REPORT_H

#include "kernel.h"

enum report_kind { REP_BORN = 1, REP_MISSING, REP_FD, REP_READY, REP_STARTED, REP_NOT_STARTED, REP_EXITED, REP_ERROR, REP_DENIED, REP_TRAFFIC,
	REP_BUSY, REP_LOST };

enum { REPORT_WAITS = 0, REPORT_MAY_FAIL = 1 };

// exec is the command it is about, 0 for the box itself or where there is but one.
// Returns a negative errno when nobody received it; with REPORT_MAY_FAIL also
// when the supervisor has not read what it was told before. fd is passed on when
// it is not negative.
long send_report(u32 kind, u32 exec, int err, const char *text, u64 a, u64 b, u64 c, u64 d, int fd, int how);

#endif
