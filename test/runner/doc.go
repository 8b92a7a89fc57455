// Runner builds every test of the module and runs it: as root, once as root
// and once as an ordinary user; as an ordinary user, once as that user. It
// makes the file systems that the tests need, checks afterwards that nothing
// is left on the machine, and closes with one line of counts.
package main
