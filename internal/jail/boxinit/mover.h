// The mover: directories can be renamed in a box whose overlay refuses it.
#ifndef MOVER_H
#define MOVER_H

#include "kernel.h"

// How many descriptors mover_poll may ask for. A listener lives as long as any
// process that carries its filter.
enum { MOVER_FDS = 513 };

enum {
	LISTEN_RESTARTS = 1,      // a signal breaks off a caller's wait (before Linux 5.19)
	LISTEN_RENAMES = 2,       // renames are asked about
	LISTEN_NO_SUBPROCESS = 4, // the filter refuses new processes
};

// Whether one more listener can be served; a negative errno if not.
int mover_ready(int flags);

// Takes over the listener of a filter that commands carry; flags say what that
// filter asks about. Only after mover_ready.
void mover_listen(int listener, int flags);

// Fills in what to poll for, and returns how many.
int mover_poll(struct kernel_pollfd polled[MOVER_FDS]);

// Serves what poll reported, before anything else is polled for or listened to.
// Never blocks for longer than looking up a path.
void mover_serve(const struct kernel_pollfd polled[MOVER_FDS]);

// Whether a move is under way.
int mover_busy(void);

// Waits until no move is under way: none may be cut off by the end of the box.
// One that takes long is told to put back what it has moved.
void mover_finish(void);

#endif
