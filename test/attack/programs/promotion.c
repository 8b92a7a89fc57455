// What a box leaves in the workspace for the host to promote.

#include "attack.h"
#include <sys/un.h>
#include <sys/xattr.h>

static void put(const char *path, const char *text, mode_t mode)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0) {
		line("SAY", path, "%s", errno_name(errno));
		if (fd >= 0)
			close(fd);
		return;
	}
	fchmod(fd, mode);
	close(fd);
	line("TRIED", path, "written");
}

static void symlink_out(void)
{
	unlink("out");
	judge("symlink(out)", symlink(param("canarydir"), "out") ? -1 : (errno = EACCES, -1), "EACCES", ""); // may be made; must not lead out
	char path[4200];
	snprintf(path, sizeof path, "out/%s", param("name"));
	int fd = open(path, O_WRONLY | O_TRUNC);
	if (fd >= 0 && write(fd, "owned", 5) == 5)
		line("GOT", "write through the link", "written");
	else
		line("TRIED", "write through the link", "%s", errno_name(errno));
	symlink("../beside", "relative");
	symlink("/etc", "etc");
	mkdir("dir", 0755);
	symlink("../../beside", "dir/up");
	// In place of a directory that the host has.
	if (!rename("tree", "tree-moved"))
		judge("symlink(tree)", symlink(param("canarydir"), "tree") ? -1 : (errno = EACCES, -1), "EACCES", "");
	put("ordinary", "fine\n", 0644);
}

static void odd_names(void)
{
	char longest[256];
	memset(longest, 'n', 255);
	longest[255] = 0;
	put("new\nline", "x", 0644);
	put("inv\xff\xfe", "x", 0644);
	put(longest, "x", 0644);
	put("-rf", "x", 0644);
	put(" ", "x", 0644);
	put("...", "x", 0644);
	put("back\\slash", "x", 0644);
	put("\x1b[31mred", "x", 0644);
	put("trusted.overlay.opaque", "x", 0644);
	put(".wh.tree", "x", 0644);
	put(".wh..wh..opq", "x", 0644);
	mkdir("..dots", 0755);
	put("..dots/..x", "x", 0644);
	static const char *const outside[] = {"../beside/escaped", "../escaped", "../../escaped", "/etc/escaped", "../../../../../../escaped"};
	for (size_t i = 0; i < (bare() ? 1 : 5); i++)
		close(open(outside[i], O_CREAT | O_WRONLY, 0644));
}

static void handoffs(void)
{
	mkdir(".git", 0755);
	mkdir(".git/hooks", 0755);
	put(".git/hooks/pre-commit", "#!/bin/sh\ntouch owned\n", 0755);
	put(".git/config", "[core]\n\tfsmonitor = ./evil\n\tsshCommand = ./evil\n", 0644);
	put(".gitmodules", "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c evil\n", 0644);
	mkdir(".github", 0755);
	mkdir(".github/workflows", 0755);
	put(".github/workflows/ci.yml", "on: push\n", 0644);
	put(".envrc", "evil\n", 0644);
	put(".bashrc", "evil\n", 0644);
	mkdir(".vscode", 0755);
	put(".vscode/tasks.json", "{\"tasks\":[{\"label\":\"x\",\"runOptions\":{\"runOn\":\"folderOpen\"}}]}", 0644);
}

static void rights(void)
{
	put("setuid", "#!/bin/sh\nid\n", 04755);
	put("setgid", "#!/bin/sh\nid\n", 02755);
	put("worldly", "x", 0666);
	mkdir("setgid-dir", 0755);
	chmod("setgid-dir", 02777);
	static const unsigned char cap[20] = {1, 0, 0, 2, 0, 0, 0x20, 0};
	put("capable", "x", 0755);
	judge("security.capability", setxattr("capable", "security.capability", cap, 20, 0), "EPERM EOPNOTSUPP ENOSYS", "EINVAL");
	judge("trusted.x", setxattr("capable", "trusted.x", "y", 1, 0), "EPERM EOPNOTSUPP", "");
	// An entry for uid 0, and one for a stranger.
	static const unsigned char acl[] = {2, 0, 0, 0, 1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, 2, 0, 7, 0, 0x39, 0x30, 0, 0, 4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, 0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 0x20, 0, 4, 0, 0xff, 0xff, 0xff, 0xff};
	long ret = setxattr("worldly", "system.posix_acl_access", acl, sizeof acl, 0);
	line("TRIED", "an ACL for uid 12345", "%s", ret < 0 ? errno_name(errno) : "set in the box");
}

static void odd_nodes(void)
{
	line("TRIED", "mkfifo", "%s", mkfifo("fifo", 0666) ? errno_name(errno) : "made in the box");
	struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "socket"};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	line("TRIED", "a socket", "%s", bind(fd, (struct sockaddr *)&a, sizeof a) ? errno_name(errno) : "made in the box");
	line("TRIED", "a node 0:0", "%s", mknod("null", S_IFCHR | 0666, 0) ? errno_name(errno) : "made in the box");
	judge("a node 1:3", mknod("device", S_IFCHR | 0666, 1 << 8 | 3), "EPERM ENOSYS EACCES", "");
	// A whiteout made by hand over what the host has.
	if (!unlink("kept"))
		line("TRIED", "a node 0:0 in place of a file", "%s", mknod("kept", S_IFCHR, 0) ? errno_name(errno) : "made in the box");
	put("ordinary", "fine\n", 0644);
}

static void overlay_forge(void)
{
	static const char *const names[] = {"user.overlay.redirect", "trusted.overlay.redirect", "user.overlay.opaque", "trusted.overlay.opaque", "user.overlay.metacopy", "trusted.overlay.metacopy", "user.overlay.whiteout", "user.overlay.whiteouts", "user.overlay.overlay.redirect", "user.overlay.origin", "user.overlay.impure", "user.overlay.upper"};
	char what[96], redirect[4200];
	snprintf(redirect, sizeof redirect, "%s", param("canarydir"));
	mkdir("forged", 0755);
	put("forged/own", "own\n", 0644);
	put("tree/touched", "x", 0644);
	put("forged-file", "", 0644);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		static const char *const on[] = {"forged", "tree", "forged-file", "kept", "."};
		for (size_t j = 0; j < 5; j++) {
			const char *value = strstr(names[i], "redirect") ? redirect : strstr(names[i], "opaque") ? "y" : "";
			long ret = setxattr(on[j], names[i], value, strlen(value), 0);
			snprintf(what, sizeof what, "%s on %s", names[i], on[j]);
			line(ret == 0 && !strncmp(names[i], "trusted", 7) ? "GOT" : "TRIED", what, "%s", ret ? errno_name(errno) : "set");
		}
	}
	DIR *d = opendir("forged");
	for (struct dirent *e; d && (e = readdir(d));)
		if (!strcmp(e->d_name, param("name")))
			line("GOT", "forged", "shows %s", e->d_name);
	if (d)
		closedir(d);
}

// Looks at what was planted in the workspace before the box was made.
static void overlay_planted(void)
{
	static const char *const dirs[] = {"planted-redirect", "planted-opaque", "planted-x", "tree"};
	for (size_t i = 0; i < 4; i++) {
		DIR *d = opendir(dirs[i]);
		int count = 0;
		for (struct dirent *e; d && (e = readdir(d));) {
			count++;
			if (*param("name") && !strcmp(e->d_name, param("name")))
				line("GOT", dirs[i], "shows %s", e->d_name);
		}
		if (d)
			closedir(d);
		line("TRIED", dirs[i], "%d entries", count - 2);
	}
	judge_read("planted-redirect/secret");
	char *text = slurp("planted-metacopy");
	line("SAY", "planted-metacopy", "%s", text ? text : errno_name(errno));
	put("tree/new", "x", 0644);
	put("planted-opaque/new", "x", 0644);
}

static void plain_change(void)
{
	put("tree/inner/file", "changed\n", 0644);
	put("kept", "changed\n", 0644);
	put("fresh", "new\n", 0644);
	unlink("gone");
}

const struct attack promotion[] = {
	{"symlink-out", symlink_out}, {"odd-names", odd_names}, {"handoffs", handoffs}, {"rights", rights}, {"odd-nodes", odd_nodes}, {"overlay-forge", overlay_forge}, {"overlay-planted", overlay_planted}, {"plain-change", plain_change}, {0, 0},
};
