// Package term takes out of a box's output what acts on a terminal.
//
// A terminal obeys what is written to it: it sets its title and the clipboard,
// it answers questions by typing (CVE-2003-0063, CVE-2022-45872), it hides and
// repaints what others wrote. So output is let through by an allowlist: text,
// and complete control sequences of a Set. All else is dropped, whatever it may
// mean to the one or the other terminal.
//
// It may touch: nothing.
package term
