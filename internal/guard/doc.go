// Package guard looks at what a promotion would make somebody else run.
//
// A jail keeps a command in while it runs. What it wrote leaves with the
// promotion, and then git, the editor, the shell, a package manager or the
// agent's own harness reads it outside of every jail. So each path of a change
// is held against a table ([Table]): its path as a file system would resolve
// it, its type, its rights, and its content where a key decides. What is judged
// is the state after the promotion, the workspace and the change merged.
//
// It may touch: the layer and the workspace, reading; the user's configuration
// of hutch and of git, reading; of what a link leads to, its existence and
// rights. It runs nothing, and follows no link of a layer or workspace.
package guard
