package box

import (
	"hutch/internal/gitdb"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// someDate is 1980-01-01, the first that a zip archive can say.
const someDate = 315532800

// fixed is what stands for all that differs between two runs; nil: nothing.
func (c *cell) fixed() *view.Fixed {
	if !c.policy.Deterministic {
		return nil
	}
	date := int64(someDate)
	if t := lastCommit(c.ws); t > 0 {
		date = t
	}
	return &view.Fixed{Date: date}
}

// lastCommit is the time of the commit that the workspace is at, in seconds
// since 1970; 0 where git has none that can be read.
func lastCommit(ws *workspace.Workspace) int64 {
	dirs, release, err := gitDirs(ws)
	defer release()
	if err != nil || len(dirs) == 0 {
		return 0
	}
	repo, err := gitdb.Open(dirs...)
	if err != nil {
		return 0
	}
	defer repo.Close()
	head, err := repo.Head()
	if err != nil || head == "" {
		return 0
	}
	commit, err := repo.Commit(head)
	if err != nil {
		return 0
	}
	return commit.Time
}
