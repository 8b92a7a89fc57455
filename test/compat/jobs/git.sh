# program: git
# version: git --version
# does: init, commit, branch, rebase, stash, bisect, worktree, clone of a local repository, git mv of a directory, gc, fsck
# kind: core
# note: an ordinary user on an overlay clones a repository of the workspace with --no-hardlinks: git takes the number of a new link for another file (overlay.md)
# makes: clone/.git/HEAD made.txt old2/deep/a.txt
# differs: \.git/(.*/)?(index|logs/.*|.*\.(idx|pack|rev|graph))$
# varies: \.git/(.*/)?(COMMIT_EDITMSG|FETCH_HEAD|ORIG_HEAD|gc\.log|AUTO_MERGE)$

who() {
	export GIT_AUTHOR_DATE='2024-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2024-01-01 00:00:00 +0000'
	export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
}

before() {
	who
	git init -q -b main
	mkdir -p old/deep
	for i in 1 2 3 4; do
		echo "line $i" >> old/deep/a.txt
		git add . && git commit -qm "commit $i"
	done
}

job() {
	who
	git mv old old2 && git commit -qm moved
	git checkout -q -b feature HEAD~2
	echo feature > made.txt && git add made.txt && git commit -qm feature
	git rebase -q main
	git checkout -q main && git merge -q --ff-only feature
	echo dirty >> made.txt && git stash -q && test "$(git status --porcelain)" = '' && git stash pop -q && git checkout -q made.txt
	git bisect start HEAD HEAD~4 > /dev/null
	git bisect run sh -c '! grep -q "line 4" old*/deep/a.txt' > bisect.txt
	grep -q 'is the first bad commit' bisect.txt && rm bisect.txt
	git bisect reset > /dev/null 2>&1
	git worktree add -q ./tree -b other
	(cd tree && echo more > more.txt && git add . && git commit -qm more)
	git worktree remove tree
	git clone -q --no-hardlinks . clone && git -C clone pull -q
	git clone -q clone again && rm -rf again # of objects made here: hard links
	git -C clone remote remove origin
	git gc -q --prune=now
	git fsck --strict
	git log --oneline --all | cat
}
