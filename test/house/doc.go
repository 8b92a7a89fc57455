// Package house checks the rules of the house that a compiler does not: how
// rooms import each other, which calls they may not make, and what must not be
// in the repository.
package house
