package guard

import (
	"path/filepath"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

const (
	setuid        = 0o4000
	setgid        = 0o2000
	worldWritable = 0o002
)

// rights judges the mode, the capabilities and the names of what a change
// leaves.
func (j *judge) rights(e *changeset.Entry) {
	after := e.After
	if after.Type != fsat.Regular && after.Type != fsat.Directory {
		return
	}
	var before uint32
	if e.Before != nil && e.Before.Type == after.Type {
		before = e.Before.Mode
	}
	if after.Type == fsat.Regular {
		// A file that had the right keeps it, for other content too.
		if after.Mode&(setuid|setgid) != 0 && (after.Mode&(setuid|setgid)&^before != 0 || !sameContent(e)) {
			j.rule(e.Path, "setuid", "")
		}
		if e.Before != nil && e.Before.Type == fsat.Regular && newlyExecutable(e) {
			j.rule(e.Path, "executable", "")
		}
	}
	if after.Mode&worldWritable != 0 && before&worldWritable == 0 {
		j.rule(e.Path, "world-writable", "")
	}
	if after.Type != fsat.Regular || e.Source != changeset.Layer {
		return
	}
	st, capable, err := j.layerStat(e.SourcePath, after.Mode&0o111 != 0)
	if err != nil {
		j.fail(err)
		return
	}
	if capable {
		j.rule(e.Path, "capabilities", "")
	}
	if st.Nlink > 1 && !j.Shared {
		j.hardLink(e, st)
	}
}

// hardLink holds a file that has names which the layer does not show: who can
// write to one of them changes what was promoted.
func (j *judge) hardLink(e *changeset.Entry, st fsat.Stat) {
	if j.links == nil {
		var err error
		if j.links, err = j.names(); err != nil {
			j.fail(err)
			return
		}
	}
	if j.links[st.Ino] < st.Nlink {
		j.rule(e.Path, "hard-link", "")
	}
}

// rule reports a finding of a row that is not found by paths.
func (j *judge) rule(path, id, why string) {
	row := ruleOf(id)
	if why != "" {
		why += ": " + row.Why
	}
	j.report(path, row, row.Tier, why)
}

// findPathDirs notes the directories of the workspace from which the user's
// shell takes programs by name.
func (j *judge) findPathDirs() {
	for _, dir := range j.SearchPath {
		switch {
		case dir == "":
			dir = "." // as execvp takes it
		case filepath.IsAbs(dir):
			rest, ok := strings.CutPrefix(filepath.Clean(dir), strings.TrimSuffix(j.WorkspacePath, "/")+"/")
			if !ok && filepath.Clean(dir) != j.WorkspacePath || j.WorkspacePath == "" {
				continue
			}
			if !ok {
				rest = "."
			}
			dir = rest
		}
		dir = filepath.Clean(dir)
		if strings.HasPrefix(dir, "..") {
			continue
		}
		if dir != "." {
			// By a link, the programs lie where it leads to.
			if inside, out := j.resolve("x", dir); out == "" {
				dir = inside
			}
		}
		j.pathDirs = append(j.pathDirs, dir)
	}
}

// onPath holds a program in a directory that is on the user's PATH.
func (j *judge) onPath(e *changeset.Entry) {
	if len(j.pathDirs) == 0 || e.After.Type == fsat.Directory || e.After.Type == fsat.Regular && e.After.Mode&0o111 == 0 {
		return
	}
	if sameContent(e) && !newlyExecutable(e) {
		return
	}
	dir, _ := fsat.Split(e.Path)
	for _, on := range j.pathDirs {
		if on == dir {
			j.rule(e.Path, "path-program", "")
			return
		}
	}
}
