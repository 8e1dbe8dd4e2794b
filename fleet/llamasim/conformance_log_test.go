package llamasim

import (
	"compress/gzip"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	logStamp  = regexp.MustCompile(`^(\[[ \d]+\] )?\d+\.\d\d\.\d{3}\.\d{3} `)
	logNumber = regexp.MustCompile(`[ -]*\d+(\.\d+)?`)
)

// kindOfLine is a line without its clock and numbers, the marks of a child's kept.
func kindOfLine(line string) string {
	child := ""
	if strings.HasPrefix(line, "[") {
		child = "[child] "
	}
	return child + logNumber.ReplaceAllString(logStamp.ReplaceAllString(line, ""), "#")
}

// digest is what a log says, in a form that does not depend on how the lines of
// requests mix that run at once, nor on how many tokens a text has.
type digest struct {
	Tasks   []string // the kinds of lines of each task, in the order of their launch
	Others  []string // the lines of no task
	Chosen  int      // lines that say how a slot was chosen
	Proxied int
}

var taskOf = regexp.MustCompile(`(?:\| task |task id = |id_task = )(\d+)`)

func digestOf(lines []string) digest {
	d := digest{}
	place := map[string]int{}
	for _, l := range lines {
		kind := kindOfLine(l)
		task := taskOf.FindStringSubmatch(l)
		switch {
		case strings.Contains(kind, "selected slot by"):
			d.Chosen++
		case strings.Contains(kind, "proxying request"):
			d.Proxied++
		case strings.Contains(kind, "need to evaluate"), strings.Contains(kind, "n_past was set"):
			// Hangs on whether a whole prompt was cached.
		case task == nil:
			d.Others = append(d.Others, kind)
		default:
			i, known := place[task[1]]
			if !known {
				i = len(d.Tasks)
				place[task[1]] = i
				d.Tasks = append(d.Tasks, "")
			}
			d.Tasks[i] += kind + "\n"
		}
	}
	return d
}

func readLog(t *testing.T, name string) []string {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// TestLogMatchesCapture sends the requests of a recording and compares the lines
// they leave with those of the real server: those of each task, and the others, in
// their order.
func TestLogMatchesCapture(t *testing.T) {
	for _, c := range []struct {
		capture, log string
		o            Options
	}{
		{"http-0.4.0", "llama-server-0.4.0-lv3.log.gz", Options{Model: "char"}},
		{"http-0.4.0-router", "llama-server-0.4.0-router-http.log.gz", Options{Models: []Model{{Name: "alpha"}, {Name: "beta"}}, Context: 8192}},
	} {
		t.Run(c.log, func(t *testing.T) {
			log := &logBuffer{}
			c.o.Log = log
			s := start(t, c.o)
			for _, x := range readCapture(t, "testdata/"+c.capture+".jsonl.gz") {
				replay(t, s, x, false)
			}
			_ = s.Close()
			if diff := cmp.Diff(digestOf(readLog(t, c.log)), digestOf(log.lines())); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}
