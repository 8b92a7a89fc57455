// The mover: directories can be renamed in a box whose overlay refuses it.
#ifndef MOVER_H
#define MOVER_H

#include "kernel.h"

// How many descriptors mover_poll asks for.
enum { MOVER_FDS = 9 };

enum {
	LISTEN_RESTARTS = 1,      // a signal breaks off a caller's wait (before Linux 5.19)
	LISTEN_RENAMES = 2,       // renames are asked about
	LISTEN_NO_SUBPROCESS = 4, // the filter refuses new processes
};

// Takes over the listener of the filter that a command was started with; flags
// say what that filter asks about. Returns a negative errno when there are too
// many already, and the caller keeps it.
int mover_listen(int listener, int flags, u32 command);

// Fills in what to poll for.
void mover_poll(struct kernel_pollfd polled[MOVER_FDS]);

// Serves what poll reported. Never blocks for longer than looking up a path.
void mover_serve(const struct kernel_pollfd polled[MOVER_FDS]);

// Whether a move is under way.
int mover_busy(void);

// Waits until no move is under way: none may be cut off by the end of the box.
// One that takes long is told to put back what it has moved.
void mover_finish(void);

#endif
