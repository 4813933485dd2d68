// Package runner takes the place of envoyproxy/ratelimit's own package of this name, for its integration tests: it starts the program that
// TIDEGATE_PROGRAM names, with the settings as environment variables, and reads the counters from its metrics.
package runner

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	gostats "github.com/lyft/gostats"

	"github.com/envoyproxy/ratelimit/src/settings"
)

type Runner struct {
	settings settings.Settings
	store    gostats.Store
	program  *exec.Cmd
	ended    chan struct{}
}

func NewRunner(s settings.Settings) Runner {
	program := exec.Command(os.Getenv("TIDEGATE_PROGRAM"), "ratelimit")
	program.Env = environment(s)
	for _, name := range []string{"PATH", "SSL_CERT_FILE"} {
		program.Env = append(program.Env, name+"="+os.Getenv(name))
	}
	program.Stdout, program.Stderr = os.Stderr, os.Stderr
	store := gostats.NewStore(gostats.NewNullSink(), false)
	if err := program.Start(); err != nil {
		panic(err)
	}
	return Runner{s, store, program, make(chan struct{})}
}

// Run returns when the program has ended.
func (runner *Runner) Run() {
	defer close(runner.ended)
	_ = runner.program.Wait()
}

func (runner *Runner) Stop() {
	_ = runner.program.Process.Signal(syscall.SIGTERM)
	<-runner.ended
	if code := runner.program.ProcessState.ExitCode(); code != 0 {
		panic(fmt.Sprintf("the program ended with %d", code))
	}
}

// environment has a variable for each setting that is not the default.
func environment(s settings.Settings) (variables []string) {
	all := reflect.ValueOf(s)
	for at := range all.NumField() {
		tag := all.Type().Field(at).Tag
		name, usual := tag.Get("envconfig"), tag.Get("default")
		if name == "" {
			continue
		}
		text := fmt.Sprint(all.Field(at).Interface())
		switch value := all.Field(at).Interface().(type) {
		case time.Duration:
			if usually, err := time.ParseDuration(usual); err == nil && usually == value {
				text = usual
			}
		case []string:
			text = strings.Join(value, ",")
		case map[string]string:
			var pairs []string
			for key, value := range value {
				pairs = append(pairs, key+":"+value)
			}
			text = strings.Join(pairs, ",")
		case int:
			if value == 0 && usual == "" {
				text = ""
			}
		}
		if text != usual {
			variables = append(variables, name+"="+text)
		}
	}
	return variables
}

var counter = regexp.MustCompile(`(?m)^tidegate_envoy_(\w+)_total\{domain="([^"]*)",rule="([^"]*)"\} (\d+)$`)
var reloads = regexp.MustCompile(`(?m)^tidegate_rules_reloads_total\{result="ok"\} (\d+)$`)

// GetStatsStore has the counters of the program under their names there.
func (runner *Runner) GetStatsStore() gostats.Store {
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", runner.settings.DebugPort))
	if err != nil {
		panic(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(err)
	}
	set := func(name, text string) {
		value, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			panic(err)
		}
		runner.store.NewCounter("ratelimit.service." + name).Set(value)
	}
	for _, found := range counter.FindAllStringSubmatch(string(body), -1) {
		set(fmt.Sprintf("rate_limit.%s.%s.%s", found[2], found[3], found[1]), found[4])
	}
	found := reloads.FindStringSubmatch(string(body))
	if found == nil {
		panic("there is no counter of reloads")
	}
	set("config_load_success", found[1])
	return runner.store
}
