// What the box refuses its commands while they run, counted.
#ifndef REFUSAL_H
#define REFUSAL_H

#include "kernel.h"
#include <linux/seccomp.h>

// Answers a call that a filter has not let pass with the errno that is due, and
// counts it. Nothing but the registers decides, which no other thread can change
// meanwhile.
void refuse(int listener, const struct seccomp_notif *n);

// Reports what was counted since the last report. finally: all of it, if need be
// by waiting for the supervisor.
void report_refusals(int finally);

// Reports what tried to leave a network namespace that leads nowhere.
void report_traffic(void);

#endif
