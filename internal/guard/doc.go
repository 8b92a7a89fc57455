// Package guard looks at what a promoted change would make someone else run:
// git, the editor, the shell, the agent's harness, a package manager.
package guard
