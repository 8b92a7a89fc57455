// Package boxes tests boxes that last through the command line: without the
// daemon what works without it, and through the daemon all of it.
package boxes
