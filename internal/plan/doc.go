// Package plan is a policy compiled to the exact list of kernel steps for one
// box, and its binary form: what boxinit reads.
//
// A plan is data only. It holds every mount, id, limit, filter byte and
// Landlock rule; boxinit executes it step by step and decides nothing. Its
// size does not depend on the workspace.
//
// It may touch: nothing.
package plan
