package slotlog

import (
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// linesOfKinds are a line of each kind that the captures and the samples hold, and text
// of others.
func linesOfKinds(t *testing.T) (lines []string) {
	figures := regexp.MustCompile(`[0-9]+`)
	known := make(map[string]bool)
	add := func(line string) {
		if kind := figures.ReplaceAllString(line, "0"); !known[kind] && line != "" {
			known[kind] = true
			lines = append(lines, line)
		}
	}
	for _, s := range sampleLines {
		add(s.line)
	}
	for _, name := range []string{"busy-0.4.0", "busy-b6673", "router-0.4.0"} {
		for line := range strings.Lines(string(readFile(t, "testdata/"+name+".log"))) {
			add(strings.TrimSuffix(line, "\n"))
		}
	}
	for _, line := range []string{
		"How are you?", "Hi", "<|im_start|>user", "{% endif %}", "{{ x }}", "{ \"a\": 1 }", "...", "..x", "'", "- x", "-- x --",
		"-> Slot 0 - max context: 8192", "db-1 | x", "Hello : x", "foo: bar", "foo:", "a: b", "!!! x", "Sun shine", "all is well",
		"_x", "x|y z", "Hello   |", "main: |x", "main:  x", "main: HTTP server is listening, hostname: x, port: 81",
		"I slot launch_slot_: id  0 | task 1 | processing task",
	} {
		add(line)
	}
	return lines
}

// TestShortWayMeansWhatTheLongWayDoes changes, drops and doubles each byte of a line of
// each kind, behind logs of each style.
func TestShortWayMeansWhatTheLongWayDoes(t *testing.T) {
	const frame = "slot launch_slot_: id  0 | task 42 | processing task\n"
	before := []string{
		"0.00.000.001 I srv    load_model: loading model 'x'\n0.00.000.002 I " + frame,
		"srv  update_slots: all slots are idle\n" + frame,
		"srv  update_slots: all slots are idle\n" + frame + "slot print_timing: id  0 | task 42 | \n",
		"load: x\n0.00.000.001 I srv    load_model: loading model 'x'\nfoo_bar: x\n",
		"I " + frame,
	}
	after := strings.Repeat("0.20.901.300 I srv  log_server_r: x\nprint_info: x\n", 8)
	changes := " |:09.aX=-[{<\r\x00\x1b\x80\n"
	rng := rand.New(rand.NewPCG(1, 2))
	o := SourceOptions{}
	check := func(start, line string) {
		text := []byte(start + line + "\n" + line + "\n" + after)
		got, gotStats := feed(o, text, whole)
		if want, wantStats, _ := feedLongWay(o, text); !reflect.DeepEqual(got, want) || gotStats != wantStats {
			t.Errorf("%q behind %q:\nthe short way, %+v:\n%+v\nthe long way, %+v:\n%+v", line, start, gotStats, got, wantStats, want)
		}
	}
	for _, line := range linesOfKinds(t) {
		for _, start := range before {
			check(start, line)
		}
		for n := range 4 * len(line) {
			i, k := n/4, rng.IntN(len(changes))
			changed := line[:i] + changes[k:k+1] + line[i+1:]
			switch rng.IntN(6) {
			case 0:
				changed = line[:i] + line[i+1:]
			case 1:
				changed = line[:i+1] + line[i:]
			}
			check(before[rng.IntN(len(before))], changed)
		}
		if t.Failed() {
			return
		}
	}
}
