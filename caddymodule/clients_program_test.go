package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// sdkProgram is a library in a program of its own, which does a task a line.
type sdkProgram struct {
	mu  sync.Mutex // a task is done at a time
	in  io.Writer
	out *bufio.Reader
}

// startSDK starts the program until the test ends.
func startSDK(t *testing.T, program string, args ...string) *sdkProgram {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
		if t.Failed() && said.Len() > 0 {
			t.Logf("%s said %s", program, said.String())
		}
	})
	return &sdkProgram{in: in, out: bufio.NewReader(out)}
}

// sdkTask is a task as the programs in testdata/clients read it.
type sdkTask struct {
	Task     string         `json:"task"`
	Secret   string         `json:"secret"`
	Model    string         `json:"model"`
	Prompt   string         `json:"prompt"`
	Tokens   int            `json:"tokens"`
	Streams  bool           `json:"streams"`
	Tools    bool           `json:"tools"`
	Thinking bool           `json:"thinking"`
	Schema   map[string]any `json:"schema"`
}

func (p *sdkProgram) do(_ context.Context, task string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ask := sdkTask{
		Task: task, Secret: secretOf(task), Model: modelOf(task), Prompt: askedOf(task), Tokens: clientTokens,
		Streams: strings.Contains(task, "stream") || task == "abort",
		Tools:   strings.HasPrefix(task, "tools"), Thinking: strings.HasPrefix(task, "thinking"), Schema: schemaOf,
	}
	if ask.Tools || ask.Thinking || task == "schema" {
		ask.Tokens *= 16 // these end by themselves
	}
	if err := json.NewEncoder(p.in).Encode(ask); err != nil {
		return "error " + err.Error()
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return "error " + err.Error()
	}
	var out string
	if err := json.Unmarshal(line, &out); err != nil {
		return fmt.Sprintf("error %v in %s", err, line)
	}
	return out
}
