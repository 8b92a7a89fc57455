package workspace

// GitDirs returns the git directories outside the workspace that it refers to.
func GitDirs(ws *Workspace) ([]string, error) {
	return nil, nil
}
