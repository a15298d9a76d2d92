{{/*
The templates of this chart take a workload: a dict with
  root        the chart's own top-level object
  name        of its resources
  label       value of app.kubernetes.io/name, different for each workload of a chart
and the entries that each template names.
*/}}

{{- define "isotherm.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "isotherm.selectorLabels" -}}
app.kubernetes.io/name: {{ .label }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{/* Labels of pods: none that differs between versions of the chart, or an upgrade would replace every pod. */}}
{{- define "isotherm.podLabels" -}}
{{ include "isotherm.selectorLabels" . }}
app.kubernetes.io/component: {{ .root.Chart.Name }}
app.kubernetes.io/part-of: isotherm
{{- end -}}

{{- define "isotherm.labels" -}}
{{ include "isotherm.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* image: a dict with repository, tag, digest. */}}
{{- define "isotherm.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.global.image.registry -}}
{{- $repository = printf "%s/%s" . $repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}
