// Package client asks hutchd, over its socket: one HTTP/1.1 request a
// connection, and a WebSocket for a command that is attached to. It knows just
// enough of both protocols, since the command line links it, and net/http with
// crypto/tls would cost each of its starts a millisecond.
//
// What the daemon answers is partly what a box wrote, so every length is
// bounded, and a message that is not well-formed is an error.
//
// It may touch: the daemon's socket.
package client
