// Command manifests checks Kubernetes manifests by the Go types of the programs that read
// them: each document is decoded strictly, so a field that is unknown, given twice or of
// another type is an error. It is a module of its own, so that gad does not depend on them,
// and is run by hand:
//
//	cd scripts/manifests && go run . ../../doc/ranks/*.yaml
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	mpi "github.com/kubeflow/mpi-operator/pkg/apis/kubeflow/v2beta1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	strict "sigs.k8s.io/yaml"
)

// kinds are what a manifest may hold: apiVersion and kind to the Go type and its module.
var kinds = map[string]struct {
	object func() any
	module string
}{
	"v1/Service": {func() any { return &core.Service{} },
		"k8s.io/api"},
	"v1/Secret": {func() any { return &core.Secret{} },
		"k8s.io/api"},
	"v1/PersistentVolumeClaim": {
		func() any { return &core.PersistentVolumeClaim{} }, "k8s.io/api"},
	"batch/v1/Job": {func() any { return &batch.Job{} },
		"k8s.io/api"},
	"jobset.x-k8s.io/v1alpha2/JobSet": {func() any { return &jobset.JobSet{} },
		"sigs.k8s.io/jobset"},
	"kubeflow.org/v2beta1/MPIJob": {func() any { return &mpi.MPIJob{} },
		"github.com/kubeflow/mpi-operator"},
	"leaderworkerset.x-k8s.io/v1/LeaderWorkerSet": {func() any { return &lws.LeaderWorkerSet{} },
		"sigs.k8s.io/lws"},
}

func main() {
	failed := len(os.Args) < 2
	if failed {
		fmt.Fprintln(os.Stderr, "usage: go run . MANIFEST...")
	}
	versions := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			versions[m.Path] = m.Version
		}
	}
	for _, name := range os.Args[1:] {
		found, err := check(name)
		for _, kind := range found {
			fmt.Printf("%s: %s: good by %s %s\n", name, kind, kinds[kind].module,
				versions[kinds[kind].module])
		}
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check decodes each document of a file, and says which kinds it holds.
func check(name string) (found []string, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text))); ; {
		doc := make([]byte, len(text))
		n, err := docs.Read(doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return found, err
		}
		var head struct{ APIVersion, Kind string }
		if err := strict.Unmarshal(doc[:n], &head); err != nil {
			return found, err
		}
		kind := head.APIVersion + "/" + head.Kind
		k, ok := kinds[kind]
		if !ok {
			return found, fmt.Errorf("%q: not a kind of this program: add its Go type", kind)
		}
		if err := strict.UnmarshalStrict(doc[:n], k.object()); err != nil {
			return found, fmt.Errorf("%s: %w", kind, err)
		}
		found = append(found, kind)
	}
	if len(found) == 0 {
		return nil, errors.New("no manifest in it")
	}
	return found, nil
}
