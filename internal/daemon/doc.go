// Package daemon is the server of living boxes: HTTP over a unix socket (or
// TCP, with a token), JSON, version 1 under /v1. It decides who may ask, how
// much is admitted and in which order, and how long a client may dawdle; what a
// box does is decided by the Boxes that it is given. docs/api.md is for those
// who call it; the OpenAPI document is made from the types it answers with.
//
// It may touch: its sockets, its lock and its log in the state directory, and
// the boxes through the interface Boxes.
package daemon
