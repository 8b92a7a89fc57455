// Package inside holds what is tested only within the guests of test/vm: its
// tests have the build tag vm.
package inside
