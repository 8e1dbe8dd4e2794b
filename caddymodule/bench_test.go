package caddymodule

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slotfleet/slotfleet/fleet/llamasim"
	"github.com/slotfleet/slotfleet/linkf"
)

// BenchmarkLogLineToAdmin measures the time from the write of a log line until the
// admin API shows it: each round turns a slot to processing and back to idle. While
// lines are written besides, half of them change a slot too.
func BenchmarkLogLineToAdmin(b *testing.B) {
	for _, rate := range []int{0, 2000} {
		b.Run(fmt.Sprintf("%d_lines_a_second_besides", rate), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "server.log")
			log := openLog(b, path)
			e := startEdge(b, "slotlog {\n\t\tsource gpu1 file "+path+"\n\t}", "respond 204")
			untilShown(b, e, log, rate)
		})
	}
}

// BenchmarkLogLineToHead measures the same for a log that an agent reads, on this machine.
// Each line comes when the one before was told, so that it waits the 20 ms in full.
func BenchmarkLogLineToHead(b *testing.B) {
	for _, rate := range []int{0, 2000} {
		b.Run(fmt.Sprintf("%d_lines_a_second_besides", rate), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "server.log")
			log := openLog(b, path)
			token, address := linkf.NewToken(), freeAddr(b)
			e := startEdge(b, "fleet {\n\t\tlisten "+address+"\n\t\ttoken "+token+"\n\t}", "fleet")
			// Nobody answers there: the log alone says what the slots do.
			agentWithLog(b, address, token, "box-c", path, "http://127.0.0.1:1")
			untilShown(b, e, log, rate)
		})
	}
}

// untilShown writes one line after the other and waits until it shows.
func untilShown(b *testing.B, e *edge, log io.Writer, rate int) {
	write := func(format string, args ...any) {
		if _, err := fmt.Fprintf(log, format+"\n", args...); err != nil {
			b.Fatal(err)
		}
	}
	write("0.00.000.001 I srv  llama_server: listening on http://127.0.0.1:9101")
	shows := func(what string) {
		for !strings.Contains(e.get(e.Admin+"/slotlog/slots").Body, what) {
		}
	}
	stop := busyWriter(rate, func(n int) {
		write("0.01.000.000 I slot launch_slot_: id  1 | task %d | processing task, is_child = 0", n)
		write("0.01.000.000 I slot      release: id  1 | task %d | stop processing: n_tokens = 10, truncated = 0", n)
	})
	defer stop()
	var took []time.Duration
	task := 0
	for b.Loop() {
		task++
		began := time.Now()
		write("0.01.000.000 I slot launch_slot_: id  0 | task %d | processing task, is_child = 0", task)
		shows(fmt.Sprintf(`"slot":0,"state":"processing","task":%d,`, task))
		took = append(took, time.Since(began))
		began = time.Now()
		write("0.01.000.000 I slot      release: id  0 | task %d | stop processing: n_tokens = %d, truncated = 0", task, task)
		shows(fmt.Sprintf(`"slot":0,"state":"idle","task":null,"promptTokens":%d,`, task))
		took = append(took, time.Since(began))
	}
	report(b, took)
}

// busyWriter calls write, which writes two lines, at a rate until stop is called.
func busyWriter(linesPerSecond int, write func(n int)) (stop func()) {
	if linesPerSecond == 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Second / time.Duration(linesPerSecond))
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				write(n)
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// report tells the median and the 99th percentile in milliseconds.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))]) / float64(time.Millisecond)
	}
	b.ReportMetric(at(0.5), "ms-p50")
	b.ReportMetric(at(0.99), "ms-p99")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkKillToNextToken measures the longest gap between two chunks that a client
// sees after the node that answers it was killed. The stand-ins leave 5 ms between
// tokens and read prompts at once.
func BenchmarkKillToNextToken(b *testing.B) {
	e, sims := trio(b, llamasim.Options{Decode: 200}, "")
	var gaps []time.Duration
	for b.Loop() {
		var killed *llamasim.Server
		var last time.Time
		var gap time.Duration
		got := e.ask(b.Context(), askings[0], 40, func(chunk int) {
			now := time.Now()
			if killed != nil {
				gap = max(gap, now.Sub(last))
			}
			if last = now; chunk == 10 {
				killed = killServing(sims)
			}
		})
		if got.Fault != "" || killed == nil {
			b.Fatalf("got %+v", got)
		}
		gaps = append(gaps, gap)
		if err := killed.Restart(); err != nil {
			b.Fatal(err)
		}
		e.allUp(len(sims))
	}
	report(b, gaps)
}
