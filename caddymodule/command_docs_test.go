package caddymodule

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slotfleet/slotfleet/fleet"
)

// codeBlocks are the blocks of a document that name no language.
func codeBlocks(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	var block *strings.Builder
	skip := false
	for line := range strings.Lines(string(text)) {
		fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case ok && (block != nil || skip):
			if block != nil {
				blocks = append(blocks, block.String())
			}
			block, skip = nil, false
		case ok && fence != "":
			skip = true
		case ok:
			block = new(strings.Builder)
		case block != nil:
			block.WriteString(strings.TrimPrefix(line, "  "))
		}
	}
	return blocks
}

// What the documents show of a Caddyfile is a Caddyfile.
func TestDocumentedCaddyfilesAreAdapted(t *testing.T) {
	const global = "{\n\tfleet {\n\t\tnode a http://127.0.0.1:1\n\t}\n}\n"
	tried := 0
	for _, path := range []string{"../README.md", "../docs/caddyfile.md", "../docs/how-it-works.md", "../docs/keys.md"} {
		for _, block := range codeBlocks(t, path) {
			switch {
			case strings.Contains(block, " [<matcher>]"):
				block = global + "http://:1 {\n" + strings.Replace(block, " [<matcher>]", "", 1) + "}\n"
			case strings.HasPrefix(block, "fleet {"), strings.HasPrefix(block, "slotlog {"), strings.HasPrefix(block, "fleet_node {"):
				block = "{\n" + block + "}\n"
			case strings.HasPrefix(block, "ai.example.com {"):
				block = global + block
			}
			tried++
			if _, err := adapt(block); err != nil {
				t.Errorf("%s: %v in\n%s", path, err, block)
			}
		}
	}
	if tried < 5 {
		t.Errorf("only %d blocks were found", tried)
	}
}

// docs/how-it-works.md has every code of an error that is made here.
func TestErrorCodesAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../docs/how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	made := regexp.MustCompile(`(?:\b(?:invalid|server|refuse)\([^,\n]+, |Code: )"([a-z_]+)"`)
	codes := make(map[string]bool)
	for _, folder := range []string{".", "../fleet/openai"} {
		files, err := filepath.Glob(folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range made.FindAllStringSubmatch(string(source), -1) {
				codes[m[1]] = true
			}
		}
	}
	delete(codes, "cancelled") // nobody is there to get it
	if len(codes) < 20 {
		t.Errorf("only %d codes were found", len(codes))
	}
	rows := strings.Split(string(document), "\n")
	for code := range codes {
		row := func(line string) bool { return strings.HasPrefix(line, "| ") && strings.Contains(line, "`"+code+"`") }
		if !slices.ContainsFunc(rows, row) {
			t.Errorf("the table of errors has no %s", code)
		}
	}
}

// docs/metrics.md has every metric, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(slotfleet_[a-z_]+)`").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1])
	}
	s := &state{manager: fleet.New()}
	defer s.manager.Retire()
	var described []string
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for _, c := range []prometheus.Collector{newFleetMetrics(s), newSlotlogMetrics(s)} {
		ch := make(chan *prometheus.Desc, 100)
		c.Describe(ch)
		close(ch)
		for d := range ch {
			described = append(described, name.FindStringSubmatch(d.String())[1])
		}
	}
	slices.Sort(documented)
	slices.Sort(described)
	if !slices.Equal(documented, described) {
		t.Errorf("docs/metrics.md has\n%s\nthe code has\n%s", strings.Join(documented, "\n"), strings.Join(described, "\n"))
	}
}
