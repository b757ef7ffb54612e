# SPDX-License-Identifier: Apache-2.0
"""Defaults and normalised values of the API server are no drift."""

from typing import Any

import pytest
import yaml

from pipecd.sdk import SyncStatus
from plugins.kubernetes.testbed import Application, live_state, succeed

POD = """
    metadata: {creationTimestamp: null, labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: null
      serviceAccountName: ""
      securityContext: {}
      nodeSelector: {}
      tolerations: []
      initContainers: []
      containers:
        - name: web
          image: web:v1
          command: null
          args: []
          env:
            - {name: EMPTY, value: ""}
            - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1000m}}}
            - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          resources:
            requests: {cpu: 0.1, memory: 1024Mi, ephemeral-storage: 1000Mi}
            limits: {cpu: "1.0", memory: 1.5Gi}
          ports: [{containerPort: 80}]
          livenessProbe: {httpGet: {port: 80}}
          volumeMounts: [{name: cache, mountPath: /cache, readOnly: false}]
      volumes:
        - {name: cache, emptyDir: {sizeLimit: 1024Mi}}
        - {name: other, emptyDir: {}}
        - {name: host, hostPath: {path: /tmp, type: ""}}
        - {name: claim, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}}}}}
"""
MANIFESTS = {
    "Deployment": f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: a, creationTimestamp: null, labels: null, annotations: {{}}}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  strategy: {{type: RollingUpdate, rollingUpdate: {{maxSurge: 1}}}}
  template: {POD}
status: {{}}
""",
    "StatefulSet": f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: a}}
spec:
  serviceName: a
  selector: {{matchLabels: {{app: web}}}}
  updateStrategy: {{rollingUpdate: {{partition: 0}}}}
  volumeClaimTemplates:
    - metadata: {{name: data, creationTimestamp: null}}
      spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1024Mi}}}}}}
      status: {{}}
  template: {POD}
""",
    "CronJob": """
apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
spec:
  schedule: "0 * * * *"
  jobTemplate:
    metadata: {creationTimestamp: null}
    spec:
      template:
        metadata: {creationTimestamp: null}
        spec: {restartPolicy: Never, containers: [{name: a, image: a}]}
""",
    "Service": """
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {selector: {app: web}, ports: [{port: 80, name: a}, {port: 81, name: b, targetPort: web}], clusterIP: ""}
""",
    "HorizontalPodAutoscaler": """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}
  maxReplicas: 3
  metrics:
    - type: Pods
      pods: {metric: {name: qps}, target: {type: AverageValue, averageValue: "0.5"}}
    - type: Object
      object:
        metric: {name: qps}
        describedObject: {apiVersion: v1, kind: Service, name: a}
        target: {type: Value, value: "1000m"}
    - type: Resource
      resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}
""",
    "HorizontalPodAutoscaler v1": """
apiVersion: autoscaling/v1
kind: HorizontalPodAutoscaler
metadata: {name: a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}
  maxReplicas: 3
  targetCPUUtilizationPercentage: 80
""",
    "LimitRange": """
apiVersion: v1
kind: LimitRange
metadata: {name: a}
spec:
  limits:
    - {type: Container, default: {cpu: 1000m}, defaultRequest: {cpu: 0.5}, max: {cpu: "2000m"}, min: {cpu: 0.1}, maxLimitRequestRatio: {cpu: "10.0"}}
""",
    "ResourceQuota": """
apiVersion: v1
kind: ResourceQuota
metadata: {name: a}
spec: {hard: {requests.cpu: 1000m, pods: "10", limits.memory: 1024Mi}}
""",
    "NetworkPolicy": """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a}
spec: {podSelector: {}, ingress: [{}], egress: [], policyTypes: [Ingress, Egress]}
""",
    "Ingress": """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a}
spec:
  rules: [{host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]
status: {loadBalancer: {}}
""",
    "PersistentVolumeClaim": """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: a}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1024Mi}}, storageClassName: ""}
""",
    "PodDisruptionBudget": """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
""",
    "Role": """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a, creationTimestamp: null}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
""",
    "ClusterRole": """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-defaults-all}
aggregationRule: {clusterRoleSelectors: [{matchLabels: {kubernetes.io/bootstrapping: rbac-defaults}}]}
rules: []
""",
    "RoleBinding": """
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: a}
roleRef: {kind: Role, name: a, apiGroup: rbac.authorization.k8s.io}
subjects: [{kind: ServiceAccount, name: a}, {kind: User, name: b}]
""",
    "ServiceAccount": """
apiVersion: v1
kind: ServiceAccount
metadata: {name: a}
secrets: []
imagePullSecrets: [{name: a}]
""",
    "Secret": """
apiVersion: v1
kind: Secret
metadata: {name: a}
data: null
stringData: {a: "1", b: ""}
""",
    "ConfigMap": """
apiVersion: v1
kind: ConfigMap
metadata: {name: a}
data: {limits: "1000m", a: ""}
binaryData: null
""",
    "CustomResourceDefinition": """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.defaults.example.com, creationTimestamp: null}
spec:
  group: defaults.example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets}
  preserveUnknownFields: false
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
      subresources: {status: {}}
status: {acceptedNames: {kind: "", plural: ""}, conditions: [], storedVersions: []}
""",
    "ValidatingWebhookConfiguration": """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: test-defaults, creationTimestamp: null}
webhooks:
  - name: a.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Ignore
    clientConfig: {service: {name: a, namespace: default, path: /a}}
    rules: [{apiGroups: [none.example.com], apiVersions: [v1], operations: [CREATE], resources: [nothings]}]
""",
    "PriorityClass": """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: test-defaults}
value: 10
globalDefault: false
""",
    "Job": """
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  template: {metadata: {creationTimestamp: null}, spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}
""",
}


@pytest.mark.parametrize("name", MANIFESTS)
async def test_defaults_of_the_api_server_are_no_drift(application: Application, name: str) -> None:
    manifest: dict[str, Any] = yaml.safe_load(MANIFESTS[name])
    bench = application.commit("c1", manifest)
    await succeed(bench, "K8S_SYNC")
    state = await live_state(bench)
    assert state.sync.status is SyncStatus.SYNCED, state.sync.details
