// Package outcome is the vocabulary of what is known of one run: status, exit
// code, times, changes; schema hutch.outcome/v1. Field names are stable.
//
// It may touch: nothing.
package outcome
