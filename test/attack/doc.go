// Package attack makes every attack that a box must hold against, from inside
// boxes, and takes the verdict from outside as well. README.md says how.
package attack
