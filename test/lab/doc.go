// Package lab is what the black-box tests share: isolated worlds in which the
// real hutch binary runs, exact snapshots of trees, and one check that nothing
// is left behind.
//
// It may touch: what it made itself, beneath the temporary directory and the
// reflink directories it was given. It imports no room of the product.
package lab
