{{/* settings: the service's own; global.settings are the defaults. */}}
{{- define "isotherm.settings" -}}
{{- mergeOverwrite (deepCopy .root.Values.global.settings) (deepCopy .settings) | toToml -}}
{{- end -}}

{{/* Takes the chart's top-level object and prefixes; returns the names of variables from Secrets that begin with one of them. */}}
{{- define "isotherm.hasVariable" -}}
{{- $values := (first .).Values -}}
{{- range $name, $_ := mergeOverwrite (dict) $values.global.secretEnv $values.secretEnv -}}
{{- range rest $ -}}
{{- if hasPrefix . $name -}}{{ $name }}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A connector as a file of its own.
  job       name, topics, kcql, errorPolicy, deadLetters, properties
  prefix    of keys that have one: "" or "connect.coap."
  base      keys that every such connector has
*/}}
{{- define "isotherm.connector" -}}
{{- $own := dict "name" .job.name (printf "%skcql" .prefix) .job.kcql -}}
{{- with .job.errorPolicy -}}
{{- $_ := set $own (printf "%serror.policy" $.prefix) . -}}
{{- end -}}
{{- if .job.deadLetters -}}
{{- $_ := set $own "errors.deadletterqueue.enable" "true" -}}
{{- end -}}
{{- $all := mergeOverwrite (dict) (deepCopy .base) $own (deepCopy (default (dict) .job.properties)) -}}
{{- $texts := dict -}}
{{- range $key, $value := $all -}}
{{/* A number in values is a float, which toString would write as 8e+06. */}}
{{- $_ := set $texts $key (kindIs "string" $value | ternary $value (toJson $value)) -}}
{{- end -}}
{{- toPrettyJson $texts -}}
{{- end -}}

{{- define "isotherm.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
data:
  settings.toml: |
    {{- include "isotherm.settings" . | nindent 4 }}
  {{- range $name, $text := .files }}
  {{ $name }}: |
    {{- $text | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The grace period of a pod: the deadline of the service, 10 s for a supervisor, and the time of preStop. */}}
{{- define "isotherm.gracePeriodSeconds" -}}
{{- $shutdown := int (default 25000 .settings.shutdown_timeout_ms) -}}
{{- add (div $shutdown 1000) 10 (default 0 .drainSeconds) -}}
{{- end -}}
