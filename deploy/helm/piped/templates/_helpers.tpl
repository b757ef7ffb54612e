{{- define "piped.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "piped.fullname" -}}
{{- $name := include "piped.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "piped.selectorLabels" -}}
app.kubernetes.io/name: {{ include "piped.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "piped.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "piped.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "piped.serviceAccountName" -}}
{{- .Values.serviceAccount.create | ternary (include "piped.fullname" .) (.Values.serviceAccount.name | default "default") }}
{{- end }}

{{- define "piped.rules" -}}
{{- if .Values.rbac.rules }}
{{- toYaml .Values.rbac.rules }}
{{- else -}}
- apiGroups: ["*"]
  resources: ["*"]
  verbs: ["*"]
{{- if eq .Values.rbac.scope "cluster" }}
- nonResourceURLs: ["*"]
  verbs: ["*"]
{{- end }}
{{- end }}
{{- end }}

{{- define "piped.args" -}}
{{- $git := .Values.launcher.configFromGitRepo }}
- {{ .Values.launcher.enabled | ternary "launcher" "piped" }}
{{- if and .Values.launcher.enabled $git.enabled }}
- --config-from-git-repo=true
- --git-repo-url={{ required "launcher.configFromGitRepo.repoUrl is required" $git.repoUrl }}
- --git-branch={{ required "launcher.configFromGitRepo.branch is required" $git.branch }}
- --git-piped-config-file={{ required "launcher.configFromGitRepo.configFile is required" $git.configFile }}
{{- with $git.sshKeyFile }}
- --git-ssh-key-file={{ . }}
{{- end }}
{{- else }}
- --config-file=/etc/piped-config/{{ .Values.config.fileName }}
{{- end }}
{{- if .Values.launcher.enabled }}
{{- with .Values.launcher.pipedRelease }}
- --piped-release={{ . }}
{{- end }}
- --launcher-admin-port=9086
{{- end }}
- --metrics={{ .Values.args.metrics }}
- --enable-default-kubernetes-cloud-provider={{ .Values.args.enableDefaultKubernetesCloudProvider }}
- --log-encoding={{ .Values.args.logEncoding }}
- --log-level={{ .Values.args.logLevel }}
- --insecure={{ .Values.args.insecure }}
{{- range .Values.args.extra }}
- {{ . | quote }}
{{- end }}
{{- end }}
