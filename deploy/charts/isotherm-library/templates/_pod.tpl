{{/*
A pod of one container.
  image, args                       what runs
  variables                         prefix of the service's environment variables
  settings, files                   content of /etc/isotherm/config
  environment                       further variables, a list
  secretEnv, secretFiles            variables and folders from Secrets, by name
  ports                             a list of name, port and protocol
  volumes, volumeMounts             beside those of every pod
  resources
  startSeconds                      how long it may take to be live
  drainSeconds                      how long after its removal from the Services it goes on taking clients
  serviceAccountName                with the right to call Kubernetes; none without
*/}}
{{- define "isotherm.pod" -}}
metadata:
  annotations:
    checksum/config: {{ printf "%s%s" (include "isotherm.settings" .) (toJson .files) | sha256sum }}
    {{- with .root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "isotherm.podLabels" . | nindent 4 }}
    {{- with .root.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- with .root.Values.global.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: {{ not (empty .serviceAccountName) }}
  enableServiceLinks: false
  securityContext: {{- include "isotherm.podSecurity" . | nindent 4 }}
  terminationGracePeriodSeconds: {{ include "isotherm.gracePeriodSeconds" . }}
  containers:
    - name: {{ .root.Chart.Name }}
      image: {{ include "isotherm.image" . | quote }}
      imagePullPolicy: {{ .root.Values.global.image.pullPolicy }}
      args: {{- toJson .args | nindent 8 }}
      env: {{- include "isotherm.environment" . | nindent 8 }}
      ports:
        - name: monitoring
          containerPort: 8080
        {{- range .ports }}
        - name: {{ .name }}
          containerPort: {{ .port }}
          protocol: {{ default "TCP" .protocol }}
        {{- end }}
      {{- include "isotherm.probes" . | nindent 6 }}
      {{- with .drainSeconds }}
      lifecycle:
        preStop:
          exec:
            command: [sleep, {{ . | quote }}]
      {{- end }}
      securityContext: {{- include "isotherm.containerSecurity" . | nindent 8 }}
      {{- with .resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: config
          mountPath: /etc/isotherm/config
          readOnly: true
        - name: tmp
          mountPath: /tmp
        {{- range $name, $_ := .secretFiles }}
        - name: secret-{{ $name }}
          mountPath: /etc/isotherm/secrets/{{ $name }}
          readOnly: true
        {{- end }}
        {{- with .volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap:
        name: {{ .name }}
    - name: tmp
      emptyDir: {}
    {{- range $name, $secret := .secretFiles }}
    - name: secret-{{ $name }}
      secret:
        secretName: {{ $secret }}
        defaultMode: 0440
    {{- end }}
    {{- with .volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "isotherm.placement" . | nindent 2 }}
{{- end -}}

{{- define "isotherm.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "isotherm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "isotherm.environment" -}}
- name: {{ .variables }}HTTP__HOST
  value: 0.0.0.0
- name: {{ .variables }}HTTP__PORT
  value: "8080"
{{- range .environment }}
- {{ toJson . }}
{{- end }}
{{- range $name, $reference := mergeOverwrite (dict) .root.Values.global.secretEnv (default (dict) .secretEnv) }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $reference.name }}
      key: {{ $reference.key }}
{{- end }}
{{- end -}}

{{/* /live reports the service's own loop, /ready whether it can work. Neither asks another server, or its outage would cause restarts. */}}
{{- define "isotherm.probes" -}}
startupProbe:
  httpGet:
    path: /live
    port: monitoring
  periodSeconds: 5
  failureThreshold: {{ div (default 60 .startSeconds) 5 }}
livenessProbe:
  httpGet:
    path: /live
    port: monitoring
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /ready
    port: monitoring
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- define "isotherm.placement" -}}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "isotherm.selectorLabels" . | nindent 8 }}
{{- end -}}
