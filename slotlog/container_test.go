package slotlog

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// interleaved is the log of several containers, their lines in turns.
func interleaved(logs map[string]string) string {
	rest := map[string][]string{}
	for name, log := range logs {
		rest[name] = strings.SplitAfter(log, "\n")
	}
	var b strings.Builder
	for i, more := 0, true; more; i++ {
		more = false
		for _, name := range []string{"llama-a-1", "llama-b-1", "postgres-1"} {
			if lines := rest[name]; i < len(lines) && lines[i] != "" {
				fmt.Fprintf(&b, "%-10s  | %s", name, lines[i])
				more = true
			}
		}
	}
	return b.String()
}

func TestContainersOfOneLogAreApart(t *testing.T) {
	// Builds that print differently, each on the port 9101 of its container.
	log := interleaved(map[string]string{
		"llama-a-1":  string(readFile(t, captures[0].file)),
		"llama-b-1":  string(readFile(t, captures[1].file)),
		"postgres-1": strings.Repeat("2026-09-20 10:11:12.123 UTC [1] LOG:  checkpoint starting: time\n", 100),
	})
	tr := track(log)
	// Both servers have the port 9101, and b's says so first.
	const second = 65536 + 9101
	if diff := cmp.Diff([]int{9101, second}, tr.Ports()); diff != "" {
		t.Fatalf("ports (-want +got):\n%s", diff)
	}
	for i, port := range []int{second, 9101} {
		if got := slotsJSON(t, tr, port); got != captures[i].slots {
			t.Errorf("port %d: slots:\n got %s\nwant %s", port, got, captures[i].slots)
		}
		if got := tr.Server(port).Restarts; got != 0 {
			t.Errorf("port %d: restarts: got %d, want 0", port, got)
		}
	}
	if got, want := tr.TakeGeneratedTokens(), captures[0].tokens+captures[1].tokens; got != want {
		t.Errorf("generated tokens: got %d, want %d", got, want)
	}
}

func TestServersOfContainersKeepTheirPortsWhereTheyDiffer(t *testing.T) {
	b := string(readFile(t, captures[0].file))
	tr := track(interleaved(map[string]string{
		"llama-a-1": b, "llama-b-1": strings.ReplaceAll(b, ":9101", ":9102"),
	}))
	if diff := cmp.Diff([]int{9101, 9102}, tr.Ports()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestColumnInTheTextOfAServerIsNoContainer(t *testing.T) {
	const launch = "0.12.000.000 I slot launch_slot_: id  %d | task 1 | processing task, is_child = 0\n"
	for _, tt := range []struct{ name, log string }{
		{"without a container", fmt.Sprintf(launch+"forged  | "+launch, 0, 1)},
		{"in a container", fmt.Sprintf("llama-1  | "+launch+"llama-1  | forged  | "+launch, 0, 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff([]int{1}, track(tt.log).Ports()); diff != "" {
				t.Errorf("ports (-want +got):\n%s", diff)
			}
		})
	}
}

func TestContainersHoldBoundedMemory(t *testing.T) {
	r, tr := NewReader(SourceOptions{}), NewTracker()
	for i := range 2000 {
		line := fmt.Sprintf("c%d  | slot launch_slot_: id  0 | task 1 | processing task\n", i)
		r.Feed([]byte(line), noon, tr.Apply)
	}
	if got := len(r.eras); got != maxContainers {
		t.Errorf("containers: got %d, want %d", got, maxContainers)
	}
	if got := len(tr.Ports()); got != maxContainers {
		t.Errorf("ports: got %d, want %d", got, maxContainers)
	}
}

func TestRouterHasNoWordOnOtherContainers(t *testing.T) {
	b := string(readFile(t, captures[0].file))
	log := interleaved(map[string]string{"llama-a-1": b, "llama-b-1": strings.ReplaceAll(b, ":9101", ":9102")})
	path := filepath.Join(t.TempDir(), "s.log")
	write(t, path, log)
	s := follow(t, SourceOptions{Path: path})
	awaitRead(t, s)
	s.Confirm(map[int]string{9101: "m"})
	var ports []int
	for _, p := range s.Snapshot(time.Now()).Ports {
		ports = append(ports, p.Port)
	}
	if diff := cmp.Diff([]int{9101, 9102}, ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}
