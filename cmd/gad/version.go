package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// A release sets these by -ldflags "-X main.version=v1.2.3 -X main.commit=HASH"
// (scripts/release.sh); any other build has what the go command wrote into it.
var version, commit string

// versionText returns the text that gad --version prints after the program's name.
func versionText() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describeBuild(info, version, commit)
}

// describeBuild returns version, commit, Go version, system, and whether the build computes on
// GPUs. Facts that the build does not record are left out: a build outside of a checkout, or with
// -buildvcs=false, has no commit.
func describeBuild(info *debug.BuildInfo, version, commit string) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit = cmp.Or(commit, settings["vcs.revision"])
	main := info.Main.Version
	if main == "(devel)" || strings.HasPrefix(main, "v0.0.0-") { // which is the commit, again
		main = ""
	}
	about := []string{}
	if commit != "" {
		if len(commit) == 40 {
			commit = commit[:12]
		}
		about = append(about, "commit "+commit)
	}
	if settings["vcs.modified"] == "true" {
		about = append(about, "modified")
	}
	about = append(about, cmp.Or(info.GoVersion, runtime.Version()),
		cmp.Or(settings["GOOS"], runtime.GOOS)+"/"+cmp.Or(settings["GOARCH"], runtime.GOARCH))
	if slices.Contains(strings.Split(settings["-tags"], ","), "nvidia") {
		about = append(about, "with CUDA")
	}
	return fmt.Sprintf("%s (%s)", cmp.Or(version, main, "development build"),
		strings.Join(about, ", "))
}
