// Command hutchd is the daemon in which boxes live: it serves HTTP at a unix
// socket. `hutch` starts it when it is needed, and it ends when it has been idle.
// docs/api.md has the protocol.
package main
