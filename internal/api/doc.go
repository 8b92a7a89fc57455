// Package api is the vocabulary of boxes that live: what is asked for and
// answered, alike in Go, on the command line and over HTTP. Its types are data;
// their JSON is the protocol of hutchd, version 1.
//
// It may touch: nothing.
package api
