package caddymodule

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestOpenAIClientOfNpm(t *testing.T) {
	f := startClientFleet(t)
	f.tryOut(t, startNpm(t, "openai", f.URL), openaiGenerations, []string{"embeddings"}, openaiFailures)
}

func TestAnthropicClientOfNpm(t *testing.T) {
	f := startClientFleet(t)
	f.tryOut(t, startNpm(t, "anthropic", f.URL), anthropicGenerations, []string{"count"}, anthropicFailures)
}

// npmSDK is a library of npm, in a process that does a task a line.
type npmSDK struct {
	mu  sync.Mutex // a task is done at a time
	in  io.Writer
	out *bufio.Reader
}

// startNpm starts the process until the test ends.
func startNpm(t *testing.T, library, url string) *npmSDK {
	t.Helper()
	script := npmClients(t)
	cmd := exec.CommandContext(t.Context(), "node", script, library, url)
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
			t.Logf("node said %s", said.String())
		}
	})
	return &npmSDK{in: in, out: bufio.NewReader(out)}
}

// npmTask is a task as tasks.mjs reads it.
type npmTask struct {
	Task    string         `json:"task"`
	Secret  string         `json:"secret"`
	Model   string         `json:"model"`
	Prompt  string         `json:"prompt"`
	Tokens  int            `json:"tokens"`
	Streams bool           `json:"streams"`
	Tools   bool           `json:"tools"`
	Schema  map[string]any `json:"schema"`
}

func (n *npmSDK) do(_ context.Context, task string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	ask := npmTask{
		Task: task, Secret: secretOf(task), Model: modelOf(task), Prompt: askedOf(task), Tokens: clientTokens,
		Streams: strings.Contains(task, "stream") || task == "abort", Tools: strings.HasPrefix(task, "tools"), Schema: schemaOf,
	}
	if ask.Tools || task == "schema" {
		ask.Tokens *= 4
	}
	if err := json.NewEncoder(n.in).Encode(ask); err != nil {
		return "error " + err.Error()
	}
	line, err := n.out.ReadBytes('\n')
	if err != nil {
		return "error " + err.Error()
	}
	var out string
	if err := json.Unmarshal(line, &out); err != nil {
		return fmt.Sprintf("error %v in %s", err, line)
	}
	return out
}

// npmClients installs the libraries and returns the path of the script that uses them.
var npmClients = func() func(t *testing.T) string {
	var once sync.Once
	var script string
	var failed error
	return func(t *testing.T) string {
		t.Helper()
		for _, program := range []string{"npm", "node"} {
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("left out: npm clients (no %s)", program)
			}
		}
		once.Do(func() { script, failed = installNpmClients() })
		if failed != nil {
			t.Fatal(failed)
		}
		return script
	}
}()

// installNpmClients copies the script to where the libraries are put, below the build
// folder: node looks for them beside it.
func installNpmClients() (string, error) {
	folder, err := filepath.Abs("../build/clients")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	const from = "testdata/clients"
	for _, name := range []string{"package.json", "package-lock.json", "tasks.mjs"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci in %s: %w\n%s", folder, err, out)
	}
	return filepath.Join(folder, "tasks.mjs"), nil
}
