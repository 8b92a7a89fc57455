// Soak drives a hutchd over its HTTP API with random boxes, commands, forks,
// checkpoints, commits, kills and deaths of the daemon, and compares everything
// that it is told and shown with a model. At the end nothing may be left.
package main
