// What the box refuses its commands while they run, counted.
#ifndef REFUSAL_H
#define REFUSAL_H

#include "kernel.h"
#include <linux/seccomp.h>

// Answers a call that a filter has not let pass with the errno that is due, and
// counts it for the command that the filter came with. Nothing but the registers decides, which no other thread can change
// meanwhile.
void refuse(int listener, u32 exec, const struct seccomp_notif *n);

enum { ALL_REFUSALS = 0 };

// Reports what was counted of a command since the last report, if need be by
// waiting for the supervisor. ALL_REFUSALS: of all commands.
void report_refusals(u32 exec);

// The same, and makes room: nothing of that command is left.
void end_refusals(u32 exec);

// Reports what tried to leave a network namespace that leads nowhere.
void report_traffic(void);

#endif
