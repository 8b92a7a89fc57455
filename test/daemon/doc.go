// Package daemon tests hutchd black-box: the program, its socket and its
// signals, with real boxes.
package daemon
