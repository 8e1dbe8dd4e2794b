package caddymodule

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/slotfleet/slotfleet/fleet/openai"
)

// documented is a row of docs/paths.md.
type documented struct{ method, kind, errors, lost string }

var ticked = regexp.MustCompile("`([^`]+)`")

func documentedPaths(t *testing.T) (paths map[string]documented, closed []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/paths.md")
	if err != nil {
		t.Fatal(err)
	}
	paths = make(map[string]documented)
	for line := range strings.SplitSeq(string(text), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 7 || !strings.Contains(cells[2], "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		for _, m := range ticked.FindAllStringSubmatch(cells[2], -1) {
			paths[m[1]] = documented{cells[1], cells[3], cells[4], cells[5]}
		}
	}
	_, rest, _ := strings.Cut(string(text), "These belong to one llama-server")
	rest, _, _ = strings.Cut(rest, ";")
	for _, m := range ticked.FindAllStringSubmatch(rest, -1) {
		if m[1] != "/v1" {
			closed = append(closed, m[1])
		}
	}
	return paths, closed
}

// docs/paths.md has every path that is served, as it is served, and no other.
func TestPathsAreDocumented(t *testing.T) {
	rows, closed := documentedPaths(t)
	kinds := map[openai.Use]string{openai.UseJob: "job", openai.UseCall: "call", openai.UseLightCall: "light call"}
	shapes := map[openai.Shape]string{openai.ShapeOpenAI: "OpenAI", openai.ShapeAnthropic: "Anthropic"}
	for _, p := range openai.Paths {
		row, ok := rows[p.Path]
		if !ok {
			t.Errorf("docs/paths.md has no %s", p.Path)
			continue
		}
		want := documented{p.Method, kinds[p.Use], shapes[p.Shape], row.lost}
		if p.Use != openai.UseJob {
			want.lost = "whole again"
		}
		if row != want || row.lost == "" {
			t.Errorf("%s: the document says %+v, want %+v", p.Path, row, want)
		}
		delete(rows, p.Path)
	}
	for path, want := range map[string]route{
		"/props": routeProps, "/v1/models": routeModels, "/models": routeModels, "/v1/models/ID": routeModel,
		"/models/ID": routeModel, "/v1/health": routeHealth, "/health": routeHealth,
	} {
		if got := routeOf(http.MethodGet, path); got != want || rows[path].method != http.MethodGet {
			t.Errorf("%s: got route %d and row %+v, want %d and GET", path, got, rows[path], want)
		}
		delete(rows, path)
	}
	for path := range rows {
		t.Errorf("docs/paths.md has %s, which is not served", path)
	}
	if strings.Join(closed, " ") != strings.Join(closedPaths, " ") {
		t.Errorf("the document closes %q, the code %q", closed, closedPaths)
	}
	for _, path := range closed {
		for _, p := range []string{path, "/v1" + path, path + "/0"} {
			if got := routeOf(http.MethodPost, p); got != routeClosed {
				t.Errorf("%s: got route %d, want it closed", p, got)
			}
		}
	}
}
