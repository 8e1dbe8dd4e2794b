package slotfleet

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/slotfleet/slotfleet"

// mayImport says which packages of this module each package may depend on, however
// far down. A package that is not listed may not exist.
var mayImport = map[string][]string{
	"slotlog":        {},
	"fleet":          {},
	"fleet/llamasim": {},
	"fleet/openai":   {"fleet"},
	"fleet/llamacpp": {"fleet", "slotlog"},
	"linkf":          {"fleet"},
	"linkf/discover": {},
	"linkf/agent":    {"linkf", "linkf/discover", "fleet", "fleet/llamacpp", "slotlog"},
	"caddymodule":    {"fleet", "fleet/openai", "fleet/llamacpp", "fleet/llamasim", "linkf", "linkf/agent", "linkf/discover", "slotlog"},
	"": {
		"caddymodule", "fleet", "fleet/openai", "fleet/llamacpp", "fleet/llamasim", "linkf", "linkf/agent", "linkf/discover", "slotlog",
	},
	"caddymodule/cmd/caddy": {
		"", "caddymodule", "fleet", "fleet/openai", "fleet/llamacpp", "fleet/llamasim", "linkf", "linkf/agent", "linkf/discover", "slotlog",
	},
}

// mayImportCaddy are the packages that know Caddy.
var mayImportCaddy = []string{"", "caddymodule", "caddymodule/cmd/caddy"}

func TestPackagesKnowOnlyWhatTheyMay(t *testing.T) {
	for _, pkg := range goList(t, "./...") {
		name, ours := own(pkg)
		if !ours {
			t.Fatalf("go list ./... names %s, which is not in %s", pkg, module)
		}
		allowed, listed := mayImport[name]
		if !listed {
			t.Errorf("package %q is not in the layout: say in layout_test.go what it may import", name)
			continue
		}
		for _, dep := range goList(t, "-deps", pkg) {
			if strings.HasPrefix(dep, "github.com/caddyserver/caddy/") && !slices.Contains(mayImportCaddy, name) {
				t.Errorf("package %q depends on %s: only caddymodule may know Caddy", name, dep)
			}
			if d, ours := own(dep); ours && d != name && !slices.Contains(allowed, d) {
				t.Errorf("package %q depends on %q, which it may not know", name, d)
			}
		}
	}
}

// fleet speaks neither HTTP nor JSON: what a job writes is opaque to it.
func TestFleetSpeaksNeitherHTTPNorJSON(t *testing.T) {
	for _, dep := range goList(t, "-f", `{{join .Imports "\n"}}`, "./fleet") {
		if dep == "net/http" || dep == "encoding/json" {
			t.Errorf("fleet imports %s", dep)
		}
	}
}

// own returns the package's path in this module.
func own(pkg string) (name string, ours bool) {
	rest, ok := strings.CutPrefix(pkg, module)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return strings.TrimPrefix(rest, "/"), true
}

func goList(t *testing.T, args ...string) []string {
	t.Helper()
	args = append([]string{"list", "-tags", "nobadger,nomysql,nopgx"}, args...)
	cmd := exec.Command("go", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.Fields(string(out))
}
